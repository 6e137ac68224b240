/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla bench attention: the CUDA kernels on this machine's GPU. */
#ifndef QMW_CMD_BENCH_ATTENTION_H
#define QMW_CMD_BENCH_ATTENTION_H

/** Runs the command; argv[0] is its name ("attention"). Returns the process's exit status. */
int qmw_cmd_bench_attention(int argc, char **argv);

#endif /* QMW_CMD_BENCH_ATTENTION_H */
