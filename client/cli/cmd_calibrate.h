/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla calibrate: learn the cache's transforms and fuse them into a checkpoint. */
#ifndef QMW_CMD_CALIBRATE_H
#define QMW_CMD_CALIBRATE_H

/** Runs the command; argv[0] is its name. Returns the process's exit status. */
int qmw_cmd_calibrate(int argc, char **argv);

#endif /* QMW_CMD_CALIBRATE_H */
