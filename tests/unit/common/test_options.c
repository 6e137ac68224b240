/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct settings {
	char *config, *listen, *nodes, *files;
	bool json;
	uint64_t threads, pool;
	int64_t grace;
	double ratio;
};

static struct settings settings;

static const struct qmc_option table[] = {
	{"config", 'c', QMC_OPTION_STRING, &settings.config, "FILE", "read FILE", 0, 0, false},
	{"listen", 'l', QMC_OPTION_STRING, &settings.listen, "ADDR", "listen", 0, 0, false},
	{"node", 0, QMC_OPTION_LIST, &settings.nodes, "ADDR", "a node", 0, 0, false},
	{"file", 0, QMC_OPTION_STRINGS, &settings.files, "FILE", "a file", 0, 0, false},
	{"json", 'j', QMC_OPTION_BOOL, &settings.json, NULL, "print JSON", 0, 0, true},
	{"threads", 't', QMC_OPTION_UNSIGNED, &settings.threads, "N", "threads", 1, 64, true},
	{"pool-size", 0, QMC_OPTION_BYTES, &settings.pool, "SIZE", "pool", 4096, 0, false},
	{"grace", 0, QMC_OPTION_DURATION, &settings.grace, "TIME", "grace", 0, 0, true},
	{"ratio", 0, QMC_OPTION_REAL, &settings.ratio, "X", "ratio", 0, 0, false},
};

static const struct qmc_options options = {
	.program = "test",
	.synopsis = "[flags]",
	.summary = "For the test.",
	.table = table,
	.count = sizeof(table) / sizeof(table[0]),
};

static int reset(void **state)
{
	(void)state;
	qmc_options_release(&options);
	memset(&settings, 0, sizeof(settings));
	return 0;
}

static enum qmc_options_result parse(const char *a, const char *b, const char *c, const char *d)
{
	char *argv[6] = {(char *)"test", (char *)a, (char *)b, (char *)c, (char *)d, NULL};
	int argc = 1;
	int first;

	while (argv[argc])
		argc++;
	return qmc_options_parse(&options, argc, argv, &first);
}

static void flags_of_each_kind(void **state)
{
	(void)state;
	assert_int_equal(parse("--listen=[::1]:0", "-j", "-t", "7"), QMC_OPTIONS_RUN);
	assert_string_equal(settings.listen, "[::1]:0");
	assert_true(settings.json);
	assert_int_equal(settings.threads, 7);
	assert_int_equal(parse("--no-json", "--pool-size=1.5GiB", "--grace=250ms", "--ratio=0.5"),
			 QMC_OPTIONS_RUN);
	assert_false(settings.json);
	assert_true(settings.pool == UINT64_C(1610612736));
	assert_true(settings.grace == 250000000);
	assert_true(settings.ratio == 0.5);
	assert_int_equal(parse("--node", "a:1", "--node", "b:2"), QMC_OPTIONS_RUN);
	assert_string_equal(settings.nodes, "a:1,b:2");
	assert_int_equal(parse("--file", "a,b", "--file", "c"), QMC_OPTIONS_RUN);
	assert_memory_equal(settings.files, "a,b\0c\0", 7);
	/* A new command line begins anew. */
	assert_int_equal(parse("--file=d", NULL, NULL, NULL), QMC_OPTIONS_RUN);
	assert_memory_equal(settings.files, "d\0", 3);
}

static void bad_values_are_usage_errors_and_change_nothing(void **state)
{
	static const char *const bad[] = {
		"--threads=0",   "--threads=65",    "--threads=x",  "--threads=-1",
		"--pool-size=1", "--pool-size=3XB", "--grace=fast", "--grace=-1s",
		"--ratio=nan",   "--file=",         "--unknown",    "--pool-size=99999999TiB"};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(parse(bad[i], NULL, NULL, NULL), QMC_OPTIONS_EXIT_USAGE);
	assert_int_equal(settings.threads, 0);
	assert_int_equal(settings.pool, 0);
}

static void flags_behind_operands_count(void **state)
{
	char *argv[] = {(char *)"test", (char *)"key", (char *)"--threads",
			(char *)"9",    (char *)"-j",  NULL};
	struct qmc_options limited = options;
	int first = 0;

	(void)state;
	assert_int_equal(qmc_options_parse(&options, 5, argv, &first), QMC_OPTIONS_RUN);
	assert_string_equal(argv[first], "key");
	assert_int_equal(first, 4);
	assert_int_equal(settings.threads, 9);
	assert_true(settings.json);
	limited.max_operands = QMC_OPERANDS_NONE;
	assert_int_equal(qmc_options_parse(&limited, 5, argv, &first), QMC_OPTIONS_EXIT_USAGE);
	limited.max_operands = 1;
	assert_int_equal(qmc_options_parse(&limited, 5, argv, &first), QMC_OPTIONS_RUN);
}

static void write_file(char *path, const char *text)
{
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void a_flag_beats_the_file(void **state)
{
	char path[] = "/tmp/qmla-conf-XXXXXX";

	(void)state;
	write_file(path, "# comment\nthreads = 3\nlisten = [::]:9\njson = true\n");
	assert_int_equal(parse("-c", path, "-t", "5"), QMC_OPTIONS_RUN);
	assert_int_equal(settings.threads, 5);
	assert_string_equal(settings.listen, "[::]:9");
	assert_true(settings.json);
	unlink(path);
}

static void a_bad_file_is_refused_whole(void **state)
{
	char unknown[] = "/tmp/qmla-conf-XXXXXX";
	char range[] = "/tmp/qmla-conf-XXXXXX";
	char syntax[] = "/tmp/qmla-conf-XXXXXX";

	(void)state;
	write_file(unknown, "threads = 3\nthread = 3\n");
	write_file(range, "threads = 3\npool-size = 1\n");
	write_file(syntax, "threads = 3\nnonsense\n");
	assert_int_equal(parse("-c", unknown, NULL, NULL), QMC_OPTIONS_EXIT_USAGE);
	assert_int_equal(parse("-c", range, NULL, NULL), QMC_OPTIONS_EXIT_USAGE);
	assert_int_equal(parse("-c", syntax, NULL, NULL), QMC_OPTIONS_EXIT_USAGE);
	assert_int_equal(parse("-c", "/nonexistent/file", NULL, NULL), QMC_OPTIONS_EXIT_USAGE);
	assert_int_equal(settings.threads, 0);
	unlink(unknown);
	unlink(range);
	unlink(syntax);
}

static void reload_changes_only_what_may_change(void **state)
{
	char path[] = "/tmp/qmla-conf-XXXXXX";

	(void)state;
	assert_int_equal(parse("--threads=2", "--pool-size=1MiB", NULL, NULL), QMC_OPTIONS_RUN);
	write_file(path, "threads = 9\npool-size = 2MiB\n");
	assert_int_equal(qmc_options_reload(&options, path), QMLA_OK);
	assert_int_equal(settings.threads, 9);
	assert_true(settings.pool == 1 << 20);
	unlink(path);
}

static void sizes_and_times(void **state)
{
	uint64_t bytes = 0;
	int64_t ns = 0;

	(void)state;
	assert_int_equal(qmc_parse_bytes("64KiB", &bytes), QMLA_OK);
	assert_true(bytes == 65536);
	assert_int_equal(qmc_parse_bytes("2G", &bytes), QMLA_OK);
	assert_true(bytes == UINT64_C(2147483648));
	assert_int_equal(qmc_parse_bytes("KiB", &bytes), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmc_parse_duration("1.5m", &ns), QMLA_OK);
	assert_true(ns == INT64_C(90000000000));
	assert_int_equal(qmc_parse_duration("2", &ns), QMLA_OK);
	assert_true(ns == INT64_C(2000000000));
	assert_int_equal(qmc_parse_duration("1d", &ns), QMLA_ERR_INVALID_ARGUMENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(flags_of_each_kind, reset),
		cmocka_unit_test_setup(bad_values_are_usage_errors_and_change_nothing, reset),
		cmocka_unit_test_setup(flags_behind_operands_count, reset),
		cmocka_unit_test_setup(a_flag_beats_the_file, reset),
		cmocka_unit_test_setup(a_bad_file_is_refused_whole, reset),
		cmocka_unit_test_setup(reload_changes_only_what_may_change, reset),
		cmocka_unit_test(sizes_and_times),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	qmc_options_release(&options);
	return failed;
}
