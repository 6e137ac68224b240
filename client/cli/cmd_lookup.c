/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/cache_commands.h"
#include "client/cli/command.h"
#include "client/cli/keyargs.h"

#define PROGRAM "qmla lookup"

struct lookup {
	struct qmw_target target;
	struct qmw_keyargs keys;
};

static size_t run_of(const qmla_status_t *statuses, size_t count)
{
	size_t run = 0;

	while (run < count && statuses[run] == QMLA_OK)
		run++;
	return run;
}

static int print_result(const struct lookup *lookup, const qmla_status_t *statuses)
{
	size_t count = lookup->keys.count, present = 0;
	int code = QMW_EXIT_OK;

	for (size_t i = 0; i < count; i++) {
		present += statuses[i] == QMLA_OK;
		code = qmw_exit_join(code, qmw_command_print_key(&lookup->keys.keys[i], statuses[i],
								 lookup->target.json));
	}
	if (lookup->target.json)
		printf("{\"keys\":%zu,\"present\":%zu,\"prefix\":%zu}\n", count, present,
		       run_of(statuses, count));
	else
		printf("%zu of %zu present; the first %zu in a row\n", present, count,
		       run_of(statuses, count));
	return code;
}

static int run_lookup(void *user, int count, char **operands)
{
	struct lookup *lookup = user;
	qmla_status_t *statuses;
	qmla_status_t status = qmw_keyargs_resolve(&lookup->keys, PROGRAM,
						   &lookup->target.identity_bytes, count, operands);
	int code = QMW_EXIT_USAGE;

	statuses = calloc(lookup->keys.count + 1, sizeof(*statuses));
	if (status == QMLA_OK && statuses) {
		status = qmla_client_probe(lookup->target.client, lookup->keys.keys,
					   lookup->keys.count,
					   qmw_target_timeout_ms(&lookup->target), statuses);
		code = status == QMLA_OK ? print_result(lookup, statuses) : qmw_exit_of(status);
	}
	free(statuses);
	qmw_keyargs_release(&lookup->keys);
	return code;
}

int qmw_cmd_lookup(int argc, char **argv)
{
	struct lookup lookup = {.target = QMW_TARGET_DEFAULT};
	const struct qmc_option table[] = {
		QMW_KEYARGS_OPTIONS(lookup.keys),
		QMW_TARGET_OPTIONS(lookup.target),
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] KEY… | --tokens FILE | --text FILE",
		.summary = "Says of each block whether the cache holds it, and how long the run "
			   "from the first one is.",
		.epilogue = "Example: qmla lookup --model checkpoints/mla-s --text prompt.txt\n"
			    "With 1, some block is missing.\n" QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	return qmw_command_run(&options, argc, argv, &lookup.target, QMW_TARGET_BLOCKS, run_lookup,
			       &lookup);
}
