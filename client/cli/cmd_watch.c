/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cache_commands.h"
#include "client/cli/command.h"
#include "common/clock.h"
#include "common/digest.h"

#define PROGRAM "qmla watch"
#define TICK_MS 200

struct watching {
	struct qmw_target target;
	bool snapshot;
	int64_t duration_ns;
	uint64_t count;
};

static volatile sig_atomic_t interrupted;

static void note_signal(int number)
{
	(void)number;
	interrupted = 1;
}

static void catch_signals(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = note_signal;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static const char *kind_name(qmla_event_kind_t kind)
{
	switch (kind) {
	case QMLA_EVENT_INSERTED:
		return "inserted";
	case QMLA_EVENT_REMOVED:
		return "removed";
	case QMLA_EVENT_SYNCED:
		return "synced";
	case QMLA_EVENT_LOST:
		return "lost";
	}
	return "unknown";
}

static void print_event(const qmla_event_t *event, bool json)
{
	bool has_key = event->kind == QMLA_EVENT_INSERTED || event->kind == QMLA_EVENT_REMOVED;
	char key[33] = "";

	if (has_key)
		qmc_hex_encode(event->key.bytes, sizeof(event->key.bytes), key);
	if (json && has_key)
		printf("{\"event\":\"%s\",\"node\":\"%s\",\"key\":\"%s\"}\n",
		       kind_name(event->kind), event->node, key);
	else if (json)
		printf("{\"event\":\"%s\",\"node\":\"%s\"}\n", kind_name(event->kind), event->node);
	else
		printf("%-8s  %-32s  %s\n", kind_name(event->kind), key, event->node);
	fflush(stdout); /* whoever reads the pipe wants it now */
}

static int print_events(struct watching *watching, qmla_watch_t *watch)
{
	qmc_time_t end =
		watching->duration_ns ? qmc_clock_after(watching->duration_ns) : QMC_TIME_NEVER;
	uint64_t printed = 0;

	while (!interrupted && qmc_clock_now() < end && !ferror(stdout)) {
		qmla_event_t event;
		qmla_status_t status = qmla_watch_next(watch, TICK_MS, &event);

		if (status == QMLA_ERR_DEADLINE)
			continue;
		if (status != QMLA_OK)
			return qmw_exit_of(status);
		print_event(&event, watching->target.json);
		if (watching->count && ++printed == watching->count)
			break;
	}
	return QMW_EXIT_OK;
}

static int run_watch(void *user, int count, char **operands)
{
	struct watching *watching = user;
	qmla_watch_t *watch;
	qmla_status_t status;
	int code;

	(void)count; /* the table takes no operands */
	(void)operands;
	catch_signals();
	status = qmla_watch_open(watching->target.client, watching->snapshot, &watch);
	if (status != QMLA_OK) {
		fprintf(stderr, "%s: %s\n", PROGRAM, qmla_status_text(status));
		return qmw_exit_of(status);
	}
	code = print_events(watching, watch);
	qmla_watch_close(watch);
	return code;
}

int qmw_cmd_watch(int argc, char **argv)
{
	struct watching watching = {.target = QMW_TARGET_DEFAULT, .snapshot = true};
	const struct qmc_option table[] = {
		{"snapshot", 0, QMC_OPTION_BOOL, &watching.snapshot, NULL,
		 "first print what is there (default; --no-snapshot leaves it out)", 0, 0, false},
		{"for", 0, QMC_OPTION_DURATION, &watching.duration_ns, "TIME",
		 "stop after so long, default never", 0, 0, false},
		{"count", 'c', QMC_OPTION_UNSIGNED, &watching.count, "N",
		 "stop after N events, default never", 0, 0, false},
		QMW_TARGET_OPTIONS(watching.target),
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags]",
		.summary = "Prints this identity's blocks as they come and go, until Ctrl-C.\n"
			   "'synced': a node's snapshot is complete. 'lost': a node cannot be "
			   "followed;\n"
			   "it is tried again, and a new snapshot follows.",
		.epilogue = QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = QMC_OPERANDS_NONE,
	};

	return qmw_command_run(&options, argc, argv, &watching.target, QMW_TARGET_BLOCKS, run_watch,
			       &watching);
}
