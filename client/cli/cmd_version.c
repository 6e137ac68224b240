/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>

#include <qmla/cache.h>

#include "client/cli/cache_commands.h"
#include "client/cli/exit.h"
#include "common/options.h"
#include "kernels/layout.h"
#include "kernels/ops.h"
#include "transport/transport.h"

#define PROTOCOL_VERSION 1

static void print_json(void)
{
	const struct qmt_transport_ops *ops;
	json_t *transports = json_array();
	json_t *line;

	for (size_t i = 0; (ops = qmt_transport_at(i)) != NULL; i++)
		json_array_append_new(transports, json_string(ops->name));
	line = json_pack("{s:s,s:i,s:i,s:o,s:b}", "version", qmla_version(), "protocol",
			 PROTOCOL_VERSION, "block_format", (int)QMK_FORMAT_VERSION, "transports",
			 transports, "cuda", qmk_cuda_ops() != NULL);
	json_dumpf(line, stdout, JSON_COMPACT);
	puts("");
	json_decref(line);
}

static void print_text(void)
{
	const struct qmt_transport_ops *ops;

	printf("qmla %s\nprotocol %d, block format %u\ntransports", qmla_version(),
	       PROTOCOL_VERSION, QMK_FORMAT_VERSION);
	for (size_t i = 0; (ops = qmt_transport_at(i)) != NULL; i++)
		printf(" %s", ops->name);
	printf("\nCUDA kernels %s\n", qmk_cuda_ops() ? "ready" : "not available here");
}

int qmw_cmd_version(int argc, char **argv)
{
	bool json = false;
	const struct qmc_option table[] = {
		{"json", 0, QMC_OPTION_BOOL, &json, NULL, "print a JSON object", 0, 0, false},
	};
	const struct qmc_options options = {
		.program = "qmla version",
		.synopsis = "[flags]",
		.summary = "Prints the version and what this build can do.",
		.epilogue = "Exit status: 0, or 2 for wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = QMC_OPERANDS_NONE,
	};
	int operand;
	enum qmc_options_result result = qmc_options_parse(&options, argc, argv, &operand);

	if (result != QMC_OPTIONS_RUN)
		return result == QMC_OPTIONS_EXIT_OK ? QMW_EXIT_OK : QMW_EXIT_USAGE;
	if (json)
		print_json();
	else
		print_text();
	return QMW_EXIT_OK;
}
