/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_first.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "server/node_options.h"

static enum qmc_options_result parse(struct qms_node_options *options, const char *const *flags)
{
	char *argv[16] = {(char *)(uintptr_t) "qmla-node"};
	int argc = 1;

	for (; flags[argc - 1]; argc++)
		argv[argc] = (char *)(uintptr_t)flags[argc - 1];
	return qms_node_options_parse(options, argc, argv);
}

#define PARSE(...)   parse(&options, (const char *const[]){__VA_ARGS__, NULL})
#define PARSE_NONE() parse(&options, (const char *const[]){NULL})

static void defaults_are_what_the_help_says(void **state)
{
	struct qms_node_options options;
	struct qms_service_config config;
	struct qmp_tls tls;

	(void)state;
	assert_int_equal(PARSE_NONE(), QMC_OPTIONS_RUN);
	qms_node_options_service(&options, &tls, &config);
	assert_string_equal(config.listen, "127.0.0.1:7600");
	assert_string_equal(config.data.listen, "127.0.0.1:7601");
	assert_string_equal(options.http_listen, "127.0.0.1:7602");
	assert_int_equal(config.store.pool_bytes, 1 << 30);
	assert_int_equal(config.store.max_identities, 4);
	assert_int_equal(config.store.max_lease_ns, 60 * QMC_NS_PER_S);
	assert_int_equal(config.store.default_pin_ns, 600 * QMC_NS_PER_S);
	assert_int_equal(config.max_batch_keys, 4096);
	assert_null(config.tls);
	assert_null(config.data.shm_dir);
	assert_true(config.node_id[0]);
	qms_node_options_release(&options);
}

static void one_free_port_makes_all_of_them_free(void **state)
{
	struct qms_node_options options;

	(void)state;
	assert_int_equal(PARSE("--listen", "[::1]:0", "--pool-size", "64MiB"), QMC_OPTIONS_RUN);
	assert_string_equal(options.data_listen, "[::1]:0");
	assert_string_equal(options.http_listen, "[::1]:0");
	assert_int_equal(options.pool_size, 64 << 20);
	qms_node_options_release(&options);
}

static void mistakes_are_usage_errors(void **state)
{
	struct qms_node_options options;

	(void)state;
#define REFUSED(...)                                                                               \
	do {                                                                                       \
		assert_int_equal(PARSE(__VA_ARGS__), QMC_OPTIONS_EXIT_USAGE);                      \
		qms_node_options_release(&options);                                                \
	} while (0)
	REFUSED("--no-such-flag");
	REFUSED("operand");
	REFUSED("--listen", "nonsense:port");
	REFUSED("--data-listen", "1.2.3.4:99999");
	REFUSED("--pool-size", "1KiB");
	REFUSED("--pool-size", "-1");
	REFUSED("--pool-size", "64KiB", "--max-identities", "64");
	REFUSED("--max-identities", "0");
	REFUSED("--max-identities", "65");
	REFUSED("--max-batch-keys", "20000");
	REFUSED("--max-lease", "0");
	REFUSED("--max-leased-percent", "101");
	REFUSED("--log-level", "loud");
	REFUSED("--log-format", "xml");
	REFUSED("--tls-certificate", "cert.pem");
	REFUSED("--tls-ca", "ca.pem");
	REFUSED("--node-id",
		"0123456789012345678901234567890123456789012345678901234567890123456789");
	REFUSED("--config", "/nonexistent/node.conf");
#undef REFUSED
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_TEXT);
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void a_flag_wins_over_the_file_and_reload_takes_what_may_change(void **state)
{
	char path[] = "/tmp/qmla-options-XXXXXX";
	struct qms_node_options options;
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	write_file(path, "max-lease = 20s\npool-size = 128MiB\nnode-id = from-file\n");
	assert_int_equal(PARSE("--config", path, "--pool-size", "256MiB"), QMC_OPTIONS_RUN);
	assert_int_equal(options.max_lease, 20 * QMC_NS_PER_S);
	assert_int_equal(options.pool_size, 256 << 20);
	assert_string_equal(options.node_id, "from-file");

	write_file(path, "max-lease = 30s\npool-size = 512MiB\nlog-level = warn\n"
			 "drain-timeout = 1s\n");
	assert_int_equal(qms_node_options_reload(&options), QMLA_OK);
	assert_int_equal(options.max_lease, 30 * QMC_NS_PER_S);
	assert_int_equal(options.drain_timeout, QMC_NS_PER_S);
	assert_int_equal(options.pool_size, 256 << 20); /* needs a restart */
	assert_false(qmc_log_enabled(QMC_LOG_INFO));
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_TEXT);

	write_file(path, "max-lease = 40s\nmax-identities = many\n");
	assert_int_not_equal(qms_node_options_reload(&options), QMLA_OK);
	assert_int_equal(options.max_lease, 30 * QMC_NS_PER_S);
	unlink(path);
	assert_int_not_equal(qms_node_options_reload(&options), QMLA_OK);
	qms_node_options_release(&options);
}

/* The file in deploy/ is read, all of it. */
static void the_example_file_is_right(void **state)
{
	struct qms_node_options options;

	(void)state;
	assert_int_equal(PARSE("--config", QMLA_SOURCE_DIR "/deploy/qmla-node.conf"),
			 QMC_OPTIONS_RUN);
	qms_node_options_release(&options);
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_TEXT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_what_the_help_says),
		cmocka_unit_test(one_free_port_makes_all_of_them_free),
		cmocka_unit_test(mistakes_are_usage_errors),
		cmocka_unit_test(a_flag_wins_over_the_file_and_reload_takes_what_may_change),
		cmocka_unit_test(the_example_file_is_right),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
