/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla bench ttft: time to first token of a prompt computed and of one found in the cache.
 */
#ifndef QMW_CMD_BENCH_MODEL_H
#define QMW_CMD_BENCH_MODEL_H

/** Runs the command; argv[0] is its name ("ttft"). Returns the process's exit status. */
int qmw_cmd_bench_ttft(int argc, char **argv);

#endif /* QMW_CMD_BENCH_MODEL_H */
