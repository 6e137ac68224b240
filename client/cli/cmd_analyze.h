/* SPDX-License-Identifier: Apache-2.0 */
/** @file qmla analyze: why RoPE keys and latents bear quantisation differently. */
#ifndef QMW_CMD_ANALYZE_H
#define QMW_CMD_ANALYZE_H

/** Runs the command; argv[0] is its name. Returns the process's exit status. */
int qmw_cmd_analyze(int argc, char **argv);

#endif /* QMW_CMD_ANALYZE_H */
