/* SPDX-License-Identifier: Apache-2.0 */
/* What /metrics prints is well-formed, true, and documented line by line. */
#include "cmocka_first.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node_fixture.h"
#include "server/metrics.h"

static int setup(void **state)
{
	static struct node node;
	struct qms_service_config config = node_config();

	config.node_id = "a\"b\\c";
	*state = &node;
	return node_start(&node, &config) && node_connect(&node, "tcp") == QMLA_OK ? 0 : -1;
}

static int teardown(void **state)
{
	node_stop(*state);
	return 0;
}

static char *print(struct node *node)
{
	char *text = NULL;
	size_t length;
	FILE *out = open_memstream(&text, &length);

	assert_non_null(out);
	qms_metrics_print(node->service, out);
	fclose(out);
	return text;
}

/* Value of the line that begins with @name and a blank, or -1. */
static double value_of(const char *text, const char *name)
{
	size_t length = strlen(name);

	for (const char *line = text; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, length) == 0 && line[length] == ' ')
			return strtod(line + length, NULL);
	}
	return -1;
}

/* A call is counted just after its answer has left. */
static char *print_when(struct node *node, const char *name, double value)
{
	qmc_time_t limit = qmc_clock_after(5 * QMC_NS_PER_S);
	char *text = print(node);

	while (value_of(text, name) < value && qmc_clock_left(limit) > 0) {
		free(text);
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
		text = print(node);
	}
	return text;
}

static void figures_are_true(void **state)
{
	struct node *node = *state;
	char *text;

	assert_int_equal(node_put(node, 1), QMLA__V1__CODE__CODE_OK);
	assert_int_equal(node_has(node, 1), QMLA__V1__CODE__CODE_OK);
	assert_int_equal(node_has(node, 2), QMLA__V1__CODE__CODE_NOT_FOUND);
	assert_null(node_lookup(node, 1, 0, 0));
	text = print_when(node, "qmla_node_rpc_duration_seconds_count{method=\"Lookup\"}", 3);
	assert_true(value_of(text, "qmla_node_ready") == 1);
	assert_true(value_of(text, "qmla_node_blocks") == 1);
	assert_true(value_of(text, "qmla_node_lookup_keys_total") == 2);
	assert_true(value_of(text, "qmla_node_hits_total") == 1);
	assert_true(value_of(text, "qmla_node_committed_total") == 1);
	assert_true(value_of(text, "qmla_node_transport_written_bytes_total{transport=\"tcp\"}") ==
		    (double)node->layout.block_bytes);
	assert_true(value_of(text,
			     "qmla_node_rpc_requests_total{method=\"Lookup\",status=\"ok\"}") == 2);
	assert_true(value_of(text,
			     "qmla_node_rpc_requests_total{method=\"Lookup\",status=\"invalid_"
			     "argument\"}") == 1);
	assert_true(value_of(text, "qmla_node_rpc_duration_seconds_count{method=\"Lookup\"}") == 3);
	assert_true(value_of(text, "qmla_node_rpc_duration_seconds_bucket{method=\"Lookup\",le=\"+"
				   "Inf\"}") == 3);
	assert_non_null(strstr(text, "node_id=\"a\\\"b\\\\c\""));
	free(text);
}

static void check_line(const char *line, char *last_type)
{
	const char *at = line;

	if (strncmp(line, "# HELP qmla_node_", 17) == 0)
		return;
	if (strncmp(line, "# TYPE ", 7) == 0) {
		assert_int_equal(sscanf(line + 7, "%127s", last_type), 1);
		return;
	}
	/* A sample belongs to the family announced last. */
	assert_int_equal(strncmp(line, last_type, strlen(last_type)), 0);
	while (isalnum((unsigned char)*at) || *at == '_')
		at++;
	if (*at == '{') {
		at = strrchr(at, '}');
		assert_non_null(at);
		at++;
	}
	assert_int_equal(*at, ' ');
	at++;
	assert_true(isdigit((unsigned char)*at));
	strtod(at, (char **)(uintptr_t)&at);
	assert_int_equal(*at, '\0');
}

static void every_line_is_exposition_format(void **state)
{
	char last_type[128] = "";
	char *text = print(*state);
	char *save = NULL;
	int lines = 0;

	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		check_line(line, last_type);
		lines++;
	}
	assert_true(lines > 200);
	free(text);
}

static void buckets_only_grow(void **state)
{
	struct node *node = *state;
	struct qms_metrics metrics = {0};

	(void)node;
	qms_metrics_observe(&metrics, 0, QMLA_OK, 0);
	qms_metrics_observe(&metrics, 0, QMLA_OK, 50 * QMC_NS_PER_US);
	qms_metrics_observe(&metrics, 0, QMLA_OK, 51 * QMC_NS_PER_US);
	qms_metrics_observe(&metrics, 0, QMLA_ERR_INTERNAL, 10 * QMC_NS_PER_S);
	assert_int_equal(metrics.methods[0].buckets[0], 2);
	assert_int_equal(metrics.methods[0].buckets[1], 1);
	assert_int_equal(metrics.methods[0].buckets[QMS_METRICS_BUCKETS], 1);
	assert_int_equal(metrics.methods[0].codes[0], 3);
	assert_int_equal(metrics.methods[0].codes[80], 1);
}

/* Every family stands in the table of docs/operations.md. */
static void every_name_is_documented(void **state)
{
	char *text = print(*state);
	char *save = NULL;
	FILE *file = fopen(QMLA_SOURCE_DIR "/docs/operations.md", "r");
	static char document[1 << 20];

	assert_non_null(file);
	document[fread(document, 1, sizeof(document) - 1, file)] = '\0';
	fclose(file);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char name[128], quoted[132];

		if (sscanf(line, "# TYPE %127s", name) != 1)
			continue;
		snprintf(quoted, sizeof(quoted), "`%s", name);
		if (!strstr(document, quoted))
			fail_msg("%s is not in docs/operations.md", name);
	}
	free(text);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(figures_are_true),
		T(every_line_is_exposition_format),
		T(buckets_only_grow),
		T(every_name_is_documented),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
