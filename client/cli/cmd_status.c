/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "client/cli/cache_commands.h"
#include "client/cli/command.h"

#define PROGRAM   "qmla status"
#define NODES_MAX 256

static json_int_t number(uint64_t value)
{
	return (json_int_t)value;
}

static void print_json(const qmla_node_status_t *node)
{
	json_t *line = json_pack("{s:s,s:s,s:f}", "node", node->address, "status",
				 qmla_status_name(node->status), "weight", node->weight);

	if (node->status == QMLA_OK) {
		json_t *figures = json_pack(
			"{s:s,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}",
			"node_id", node->node_id, "draining", node->draining, "uptime_ms",
			number(node->uptime_ms), "capacity_bytes", number(node->capacity_bytes),
			"used_bytes", number(node->used_bytes), "blocks", number(node->blocks),
			"leases", number(node->leases), "tickets", number(node->tickets), "pins",
			number(node->pins), "lookups", number(node->lookups), "hits",
			number(node->hits), "commits", number(node->commits), "evictions",
			number(node->evictions), "rejected_full", number(node->rejected_full),
			"corrupt_reports", number(node->corrupt_reports), "bytes_read",
			number(node->bytes_read), "bytes_written", number(node->bytes_written));
		char incarnation[17];

		snprintf(incarnation, sizeof(incarnation), "%016" PRIx64, node->incarnation);
		json_object_update(line, figures);
		json_object_set_new(line, "incarnation", json_string(incarnation));
		json_object_set_new(line, "data_path", json_string(node->data_path));
		json_decref(figures);
	}
	json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	puts("");
	json_decref(line);
}

static double mebibytes(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

static void print_text(const qmla_node_status_t *node)
{
	double hit_rate = node->lookups ? 100.0 * (double)node->hits / (double)node->lookups : 0;

	if (node->status != QMLA_OK) {
		printf("%-28s %s\n", node->address, qmla_status_text(node->status));
		return;
	}
	printf("%-28s %s, up %" PRIu64 " s%s\n", node->address, node->node_id,
	       node->uptime_ms / 1000, node->draining ? ", draining" : "");
	printf("  memory   %.1f of %.1f MiB in %" PRIu64 " blocks\n", mebibytes(node->used_bytes),
	       mebibytes(node->capacity_bytes), node->blocks);
	printf("  keys     %" PRIu64 " looked up, %.1f %% hits, %" PRIu64 " committed, %" PRIu64
	       " evicted, %" PRIu64 " refused (full)\n",
	       node->lookups, hit_rate, node->commits, node->evictions, node->rejected_full);
	printf("  in use   %" PRIu64 " leases, %" PRIu64 " tickets, %" PRIu64 " pins\n",
	       node->leases, node->tickets, node->pins);
	printf("  moved    %.1f MiB read, %.1f MiB written, %" PRIu64 " bad blocks reported\n",
	       mebibytes(node->bytes_read), mebibytes(node->bytes_written), node->corrupt_reports);
	if (node->data_path[0])
		printf("  path     %s\n", node->data_path);
}

static int show_status(void *user, int count, char **operands)
{
	static qmla_node_status_t nodes[NODES_MAX];
	struct qmw_target *target = user;
	size_t found = NODES_MAX;
	qmla_status_t status;
	int code = QMW_EXIT_OK;

	(void)count; /* the table takes no operands */
	(void)operands;
	status = qmla_client_status(target->client, qmw_target_timeout_ms(target), nodes, &found);
	if (status != QMLA_OK) {
		fprintf(stderr, "%s: %s\n", PROGRAM, qmla_status_text(status));
		return qmw_exit_of(status);
	}
	for (size_t i = 0; i < found; i++) {
		if (target->json)
			print_json(&nodes[i]);
		else
			print_text(&nodes[i]);
		code = qmw_exit_join(code, qmw_exit_of(nodes[i].status));
	}
	return code;
}

int qmw_cmd_status(int argc, char **argv)
{
	struct qmw_target target = QMW_TARGET_DEFAULT;
	const struct qmc_option table[] = {QMW_TARGET_NODE_OPTIONS(target)};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags]",
		.summary = "Asks every node how it is doing.",
		.epilogue = "Example: qmla status -n 10.0.0.1:7600,10.0.0.2:7600\n" QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = QMC_OPERANDS_NONE,
	};

	return qmw_command_run(&options, argc, argv, &target, QMW_TARGET_NODES, show_status,
			       &target);
}
