/* SPDX-License-Identifier: Apache-2.0 */
/** @file What every cache command does around its own work: flags, client, clean-up. */
#ifndef QMW_COMMAND_H
#define QMW_COMMAND_H

#include "client/cli/exit.h"
#include "client/cli/target.h"

/** The work itself, on the operands; returns an exit status. */
typedef int (*qmw_command_func_t)(void *user, int count, char **operands);

/**
 * Parses the flags and runs @p work. With @p target (may be NULL), the client is
 * opened before for what @p need says and closed after. Frees the flags' strings.
 */
int qmw_command_run(const struct qmc_options *options, int argc, char **argv,
		    struct qmw_target *target, enum qmw_target_need need, qmw_command_func_t work,
		    void *user);

/** Exit status of a target that could not be opened. */
int qmw_command_open_exit(qmla_status_t status);

/**
 * Prints one line about a key: {"key":…,"status":…} or "key  status".
 * Returns the exit status that it amounts to.
 */
int qmw_command_print_key(const qmla_key_t *key, qmla_status_t status, bool json);

#endif /* QMW_COMMAND_H */
