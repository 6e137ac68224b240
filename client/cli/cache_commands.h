/* SPDX-License-Identifier: Apache-2.0 */
/** @file The commands about the cache. Each runs with argv[0] its name and returns an exit status.
 */
#ifndef QMW_CACHE_COMMANDS_H
#define QMW_CACHE_COMMANDS_H

int qmw_cmd_status(int argc, char **argv);
int qmw_cmd_lookup(int argc, char **argv);
int qmw_cmd_put(int argc, char **argv);
int qmw_cmd_get(int argc, char **argv);
int qmw_cmd_remove(int argc, char **argv);
int qmw_cmd_pin(int argc, char **argv);
int qmw_cmd_unpin(int argc, char **argv);
int qmw_cmd_watch(int argc, char **argv);
int qmw_cmd_version(int argc, char **argv);
int qmw_cmd_bench(int argc, char **argv);

#endif /* QMW_CACHE_COMMANDS_H */
