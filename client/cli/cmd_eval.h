/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla eval: how good a cache is, on texts and recall prompts. */
#ifndef QMW_CMD_EVAL_H
#define QMW_CMD_EVAL_H

/** Runs the command; argv[0] is its name. Returns the process's exit status. */
int qmw_cmd_eval(int argc, char **argv);

#endif /* QMW_CMD_EVAL_H */
