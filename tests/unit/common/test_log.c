/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static char captured[65536];

/* Runs @emit with standard error in a file and reads the file back. */
static void capture(void (*emit)(void))
{
	char path[] = "/tmp/qmla-log-XXXXXX";
	int file = mkstemp(path);
	int saved = dup(STDERR_FILENO);
	ssize_t n;

	assert_true(file >= 0 && saved >= 0);
	dup2(file, STDERR_FILENO);
	emit();
	dup2(saved, STDERR_FILENO);
	n = pread(file, captured, sizeof(captured) - 1, 0);
	assert_true(n >= 0);
	captured[n] = '\0';
	close(saved);
	close(file);
	unlink(path);
}

static void emit_levels(void)
{
	qmc_log_configure(QMC_LOG_WARN, QMC_LOG_TEXT);
	qmc_error("a", "one");
	qmc_warn("a", "two");
	qmc_info("a", "three");
}

static void lines_below_the_level_are_left_out(void **state)
{
	(void)state;
	capture(emit_levels);
	assert_non_null(strstr(captured, "one"));
	assert_non_null(strstr(captured, "two"));
	assert_null(strstr(captured, "three"));
}

static void emit_hostile_text(void)
{
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_TEXT);
	qmc_info("a", "peer said %s", "x\n2026 error forged");
}

static void a_peer_cannot_forge_a_line(void **state)
{
	(void)state;
	capture(emit_hostile_text);
	assert_ptr_equal(strchr(captured, '\n'), captured + strlen(captured) - 1);
}

static void emit_hostile_json(void)
{
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_JSON);
	qmc_info("a", "quote \" backslash \\ newline \n bell \a end");
}

static void json_lines_parse(void **state)
{
	json_t *root;

	(void)state;
	capture(emit_hostile_json);
	root = json_loads(captured, 0, NULL);
	assert_non_null(root);
	assert_string_equal(json_string_value(json_object_get(root, "message")),
			    "quote \" backslash \\ newline \n bell \a end");
	assert_string_equal(json_string_value(json_object_get(root, "level")), "info");
	json_decref(root);
}

static void emit_flood(void)
{
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_TEXT);
	for (int i = 0; i < 1000; i++)
		qmc_warn_limited("a", "flood");
}

static void a_flood_is_one_line(void **state)
{
	(void)state;
	capture(emit_flood);
	assert_non_null(strstr(captured, "flood"));
	assert_true(strlen(captured) < 200);
}

static void emit_long(void)
{
	static char text[100000];

	memset(text, 'x', sizeof(text) - 1);
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_JSON);
	qmc_info("a", "%s", text);
}

static void a_long_message_is_cut_and_stays_json(void **state)
{
	json_t *root;

	(void)state;
	capture(emit_long);
	root = json_loads(captured, 0, NULL);
	assert_non_null(root);
	json_decref(root);
}

static void names_parse(void **state)
{
	enum qmc_log_level level = QMC_LOG_ERROR;
	enum qmc_log_format format = QMC_LOG_TEXT;

	(void)state;
	assert_int_equal(qmc_log_level_parse("trace", &level), QMLA_OK);
	assert_int_equal(level, QMC_LOG_TRACE);
	assert_int_equal(qmc_log_level_parse("loud", &level), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmc_log_format_parse("json", &format), QMLA_OK);
	assert_int_equal(qmc_log_format_parse("xml", &format), QMLA_ERR_INVALID_ARGUMENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_below_the_level_are_left_out),
		cmocka_unit_test(a_peer_cannot_forge_a_line),
		cmocka_unit_test(json_lines_parse),
		cmocka_unit_test(a_flood_is_one_line),
		cmocka_unit_test(a_long_message_is_cut_and_stays_json),
		cmocka_unit_test(names_parse),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
