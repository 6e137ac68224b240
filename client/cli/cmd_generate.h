/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla generate: one prompt to a decode worker. */
#ifndef QMW_CMD_GENERATE_H
#define QMW_CMD_GENERATE_H

/** Runs the command; argv[0] is its name. Returns the process's exit status. */
int qmw_cmd_generate(int argc, char **argv);

#endif /* QMW_CMD_GENERATE_H */
