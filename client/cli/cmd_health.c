/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>

#include "client/cli/cmd_health.h"
#include "client/cli/command.h"
#include "client/cli/tls.h"
#include "common/clock.h"
#include "common/options.h"
#include "proto/rpc_client.h"

#define PROGRAM    "qmla health"
#define TRY_NS     (2 * QMC_NS_PER_S)
#define BETWEEN_NS (50 * QMC_NS_PER_MS)

struct flags {
	int64_t wait;
	bool json;
	struct qmw_tls tls;
};

static qmla_status_t check_until(struct qmp_channel *channel, qmc_time_t until)
{
	for (;;) {
		qmc_time_t deadline = qmc_clock_after(TRY_NS);
		qmla_status_t status = qmp_health_check(channel, "", deadline);

		if (status == QMLA_OK || qmc_clock_left(until) == 0)
			return status;
		qmc_clock_sleep_until(qmc_clock_after(BETWEEN_NS));
	}
}

static qmla_status_t check_address(const char *address, struct flags *flags, qmc_time_t until)
{
	struct qmp_channel_config config = {.target = address, .tls = qmw_tls_files(&flags->tls)};
	struct qmp_channel *channel;
	qmla_status_t status = qmp_channel_create(&config, &channel);

	if (status == QMLA_OK) {
		status = check_until(channel, until);
		qmp_channel_destroy(channel);
	}
	if (flags->json) {
		json_t *line = json_pack("{s:s,s:b,s:s}", "address", address, "serving",
					 status == QMLA_OK, "status", qmla_status_name(status));

		json_dumpf(line, stdout, JSON_COMPACT);
		puts("");
		json_decref(line);
	} else {
		printf("%s %s\n", address,
		       status == QMLA_OK ? "serving" : qmla_status_text(status));
	}
	return status;
}

static int check_all(void *user, int count, char **addresses)
{
	struct flags *flags = user;
	qmc_time_t until = qmc_clock_after(flags->wait);
	int rc = 0;

	if (count == 0) {
		fprintf(stderr, "%s: name an address, host:port\n", PROGRAM);
		return 2;
	}
	if (!qmw_tls_check(&flags->tls, PROGRAM))
		return 2;
	for (int i = 0; i < count; i++) {
		if (check_address(addresses[i], flags, until) != QMLA_OK)
			rc = 1;
	}
	return rc;
}

int qmw_cmd_health(int argc, char **argv)
{
	struct flags f = {0};
	const struct qmc_option table[] = {
		{"wait", 'w', QMC_OPTION_DURATION, &f.wait, "TIME",
		 "go on asking for so long, default once", 0, 3600 * QMC_NS_PER_S, false},
		{"json", 0, QMC_OPTION_BOOL, &f.json, NULL, "print a JSON object a line", 0, 0,
		 false},
		{QMW_TLS_CA_OPTION(f.tls)},
		{QMW_TLS_CERTIFICATE_OPTION(f.tls)},
		{QMW_TLS_KEY_OPTION(f.tls)},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] ADDR…",
		.summary = "Asks nodes and workers whether they serve (grpc.health.v1).",
		.epilogue = "Exit status: 0 all serve, 1 one does not, 2 wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};
	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, check_all, &f);
}
