/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/cache_commands.h"
#include "client/cli/command.h"
#include "client/cli/keyargs.h"

#define PROGRAM "qmla remove"

struct removal {
	struct qmw_target target;
	struct qmw_keyargs keys;
	bool all;
};

static int remove_all(struct removal *removal)
{
	uint64_t removed = 0;
	qmla_status_t status = qmla_client_clear(removal->target.client,
						 qmw_target_timeout_ms(&removal->target), &removed);

	if (status != QMLA_OK) {
		fprintf(stderr, "%s: not every node was cleared: %s\n", PROGRAM,
			qmla_status_text(status));
		return qmw_exit_of(status);
	}
	printf(removal->target.json ? "{\"removed\":%" PRIu64 "}\n" : "%" PRIu64 " removed\n",
	       removed);
	return QMW_EXIT_OK;
}

static int remove_keys(struct removal *removal)
{
	qmla_status_t *statuses = calloc(removal->keys.count + 1, sizeof(*statuses));
	int code = QMW_EXIT_OK;

	if (!statuses)
		return QMW_EXIT_FAILED;
	(void)qmla_client_remove(removal->target.client, removal->keys.keys, removal->keys.count,
				 qmw_target_timeout_ms(&removal->target), statuses);
	for (size_t i = 0; i < removal->keys.count; i++)
		code = qmw_exit_join(code,
				     qmw_command_print_key(&removal->keys.keys[i], statuses[i],
							   removal->target.json));
	free(statuses);
	return code;
}

static int run_remove(void *user, int count, char **operands)
{
	struct removal *removal = user;
	int code = QMW_EXIT_USAGE;

	if (removal->all) {
		if (count == 0 && !qmw_keyargs_from_file(&removal->keys))
			return remove_all(removal);
		fprintf(stderr, "%s: --all and keys exclude each other\n", PROGRAM);
		return QMW_EXIT_USAGE;
	}
	if (qmw_keyargs_resolve(&removal->keys, PROGRAM, &removal->target.identity_bytes, count,
				operands) == QMLA_OK)
		code = remove_keys(removal);
	qmw_keyargs_release(&removal->keys);
	return code;
}

int qmw_cmd_remove(int argc, char **argv)
{
	struct removal removal = {.target = QMW_TARGET_DEFAULT};
	const struct qmc_option table[] = {
		{"all", 0, QMC_OPTION_BOOL, &removal.all, NULL,
		 "every block of this identity, on every node", 0, 0, false},
		QMW_KEYARGS_OPTIONS(removal.keys),
		QMW_TARGET_OPTIONS(removal.target),
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] KEY… | --tokens FILE | --text FILE | --all",
		.summary = "Removes blocks from every node. Pinned ones stay (busy).",
		.epilogue = QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	return qmw_command_run(&options, argc, argv, &removal.target, QMW_TARGET_BLOCKS, run_remove,
			       &removal);
}
