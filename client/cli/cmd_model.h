/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla model inspect: geometry, identity and what the cache of a model takes. */
#ifndef QMW_CMD_MODEL_H
#define QMW_CMD_MODEL_H

/** Runs the command; argv[0] is its name. Returns the process's exit status. */
int qmw_cmd_model(int argc, char **argv);

#endif /* QMW_CMD_MODEL_H */
