/* SPDX-License-Identifier: Apache-2.0 */
/** @file The commands about the cache. Each runs with argv[0] its name and returns an exit status.
 */
#ifndef QMW_CACHE_COMMANDS_H
#define QMW_CACHE_COMMANDS_H

/** State and figures of each node. */
int qmw_cmd_status(int argc, char **argv);

/** Which blocks the nodes have. */
int qmw_cmd_lookup(int argc, char **argv);

/** Publishes blocks from a file. */
int qmw_cmd_put(int argc, char **argv);

/** Fetches blocks into a file. */
int qmw_cmd_get(int argc, char **argv);

/** Takes blocks out, or all of an identity. */
int qmw_cmd_remove(int argc, char **argv);

/** Keeps blocks from eviction for a time. */
int qmw_cmd_pin(int argc, char **argv);

/** Ends pins. */
int qmw_cmd_unpin(int argc, char **argv);

/** Prints what comes and goes. */
int qmw_cmd_watch(int argc, char **argv);

/** Prints the version and what is built in. */
int qmw_cmd_version(int argc, char **argv);

/** Measures this machine; the cases are in bench_cases.h. */
int qmw_cmd_bench(int argc, char **argv);

/** Blocks from a running node over RDMA, for comparison with ib_read_bw. */
int qmw_cmd_bench_rdma(int argc, char **argv);

#endif /* QMW_CACHE_COMMANDS_H */
