/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/cache_commands.h"
#include "client/cli/command.h"
#include "client/cli/keyargs.h"
#include "common/clock.h"

struct pin {
	const char *program;
	struct qmw_target target;
	struct qmw_keyargs keys;
	char *owner;
	int64_t ttl_ns;
	bool end; /* unpin */
};

static void ask_nodes(struct pin *pin, qmla_status_t *statuses)
{
	uint32_t timeout_ms = qmw_target_timeout_ms(&pin->target);
	const char *owner = pin->owner ? pin->owner : "cli";

	if (pin->end)
		(void)qmla_client_unpin(pin->target.client, pin->keys.keys, pin->keys.count, owner,
					timeout_ms, statuses);
	else
		(void)qmla_client_pin(pin->target.client, pin->keys.keys, pin->keys.count, owner,
				      (uint32_t)(pin->ttl_ns / QMC_NS_PER_MS), timeout_ms,
				      statuses);
}

static int run_pin(void *user, int count, char **operands)
{
	struct pin *pin = user;
	qmla_status_t *statuses;
	int code = QMW_EXIT_USAGE;

	if (qmw_keyargs_resolve(&pin->keys, pin->program, &pin->target.identity_bytes, count,
				operands) == QMLA_OK) {
		statuses = calloc(pin->keys.count + 1, sizeof(*statuses));
		code = statuses ? QMW_EXIT_OK : QMW_EXIT_FAILED;
		if (statuses)
			ask_nodes(pin, statuses);
		for (size_t i = 0; statuses && i < pin->keys.count; i++)
			code = qmw_exit_join(code,
					     qmw_command_print_key(&pin->keys.keys[i], statuses[i],
								   pin->target.json));
		free(statuses);
	}
	qmw_keyargs_release(&pin->keys);
	return code;
}

int qmw_cmd_pin(int argc, char **argv)
{
	struct pin pin = {.program = "qmla pin", .target = QMW_TARGET_DEFAULT};
	const struct qmc_option table[] = {
		{"owner", 0, QMC_OPTION_STRING, &pin.owner, "NAME", "who holds it, default cli", 0,
		 0, false},
		{"ttl", 0, QMC_OPTION_DURATION, &pin.ttl_ns, "TIME",
		 "ends by itself after so long, default the node's", 0, UINT64_C(604800000000000),
		 false},
		QMW_KEYARGS_OPTIONS(pin.keys),
		QMW_TARGET_OPTIONS(pin.target),
	};
	const struct qmc_options options = {
		.program = pin.program,
		.synopsis = "[flags] KEY… | --tokens FILE | --text FILE",
		.summary = "Keeps blocks from being evicted or removed for a while.",
		.epilogue = "Example: qmla pin --ttl 1h --model DIR --text "
			    "system-prompt.txt\n" QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	return qmw_command_run(&options, argc, argv, &pin.target, QMW_TARGET_BLOCKS, run_pin, &pin);
}

int qmw_cmd_unpin(int argc, char **argv)
{
	struct pin pin = {.program = "qmla unpin", .target = QMW_TARGET_DEFAULT, .end = true};
	const struct qmc_option table[] = {
		{"owner", 0, QMC_OPTION_STRING, &pin.owner, "NAME", "who holds it, default cli", 0,
		 0, false},
		QMW_KEYARGS_OPTIONS(pin.keys),
		QMW_TARGET_OPTIONS(pin.target),
	};
	const struct qmc_options options = {
		.program = pin.program,
		.synopsis = "[flags] KEY… | --tokens FILE | --text FILE",
		.summary = "Ends a pin of this owner.",
		.epilogue = QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	return qmw_command_run(&options, argc, argv, &pin.target, QMW_TARGET_BLOCKS, run_pin, &pin);
}
