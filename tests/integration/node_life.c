/* SPDX-License-Identifier: Apache-2.0 */
/* A real node process from its start to its end: ports, probes, signals, start-up errors. */
#include "tests/unit/server/cmocka_first.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "node_process.h"
#include "tests/unit/server/node_fixture.h"

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define OK         QMLA__V1__CODE__CODE_OK

static struct node_process process;
static struct node node;

static int teardown(void **state)
{
	(void)state;
	node_stop(&node);
	memset(&node, 0, sizeof(node));
	node_process_stop(&process);
	return 0;
}

static void start_and_connect(const char *const *flags)
{
	assert_true(node_process_start(&process, flags));
	assert_true(node_attach(&node, process.target));
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
}

static void it_tells_its_ports_and_its_health(void **state)
{
	static char body[65536];

	(void)state;
	start_and_connect(FLAGS(NULL));
	assert_int_equal(qmp_health_check(node.channel, "", qmc_clock_after(QMC_NS_PER_S)),
			 QMLA_OK);
	assert_int_equal(node_process_get(&process, "/healthz", body, sizeof(body)), 200);
	assert_int_equal(node_process_get(&process, "/readyz", body, sizeof(body)), 200);
	assert_int_equal(node_process_get(&process, "/nothing", body, sizeof(body)), 404);
	assert_int_equal(node_put(&node, 1), OK);
	assert_int_equal(node_process_get(&process, "/metrics", body, sizeof(body)), 200);
	assert_non_null(strstr(body, "\nqmla_node_blocks 1\n"));
	assert_int_equal(kill(process.pid, SIGTERM), 0);
	assert_int_equal(node_process_wait(&process, 5000), 0);
	assert_int_equal(access(process.port_file, F_OK), -1);
}

static void drain_waits_for_a_lease_and_takes_nothing_new(void **state)
{
	char body[1024];

	(void)state;
	start_and_connect(FLAGS(NULL));
	assert_int_equal(node_put(&node, 1), OK);
	Qmla__V1__LookupResponse *leased = node_lookup(&node, 1, 1, 60000);
	uint8_t *got = malloc(node.layout.block_bytes);

	assert_int_equal(kill(process.pid, SIGTERM), 0);
	assert_true(node_process_says(&process, "draining"));
	assert_int_equal(node_process_get(&process, "/readyz", body, sizeof(body)), 503);
	assert_int_equal(node_process_get(&process, "/healthz", body, sizeof(body)), 200);
	assert_int_equal(qmp_health_check(node.channel, "", qmc_clock_after(QMC_NS_PER_S)),
			 QMLA_ERR_UNAVAILABLE);
	assert_null(node_reserve(&node, 2, 1, 1000));
	assert_int_equal(node_process_wait(&process, 200), -1);
	/* What was promised is kept. */
	assert_int_equal(node_move(&node, QMT_READ, leased->entries[0]->offset, got,
				   node.layout.block_bytes, &leased->capability),
			 QMLA_OK);
	assert_int_equal(node_release(&node, leased->lease), OK);
	assert_int_equal(node_process_wait(&process, 5000), 0);
	qmp_message_free(&leased->base);
	free(got);
}

static void drain_ends_at_its_time(void **state)
{
	(void)state;
	start_and_connect(FLAGS("--drain-timeout", "300ms"));
	assert_int_equal(node_put(&node, 1), OK);
	qmp_message_free(&node_lookup(&node, 1, 1, 60000)->base);
	assert_int_equal(kill(process.pid, SIGINT), 0);
	assert_int_equal(node_process_wait(&process, 5000), 0);
	assert_true(node_process_says(&process, "drain timeout"));
}

static void a_second_signal_ends_it_at_once(void **state)
{
	(void)state;
	start_and_connect(FLAGS(NULL));
	assert_int_equal(node_put(&node, 1), OK);
	qmp_message_free(&node_lookup(&node, 1, 1, 60000)->base);
	assert_int_equal(kill(process.pid, SIGTERM), 0);
	assert_true(node_process_says(&process, "draining"));
	assert_int_equal(kill(process.pid, SIGTERM), 0);
	assert_int_equal(node_process_wait(&process, 2000), 1);
	assert_int_equal(access(process.port_file, F_OK), -1);
}

static uint32_t max_lease_ms(void)
{
	Qmla__V1__DescribeRequest request = QMLA__V1__DESCRIBE_REQUEST__INIT;
	Qmla__V1__DescribeResponse *response;
	uint32_t ms;

	assert_int_equal(node_call(&node, "Describe", &request.base,
				   &qmla__v1__describe_response__descriptor, &response),
			 QMLA_OK);
	ms = response->max_lease_ms;
	qmp_message_free(&response->base);
	return ms;
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void sighup_reads_the_file_again(void **state)
{
	char path[] = "/tmp/qmla-node-conf-XXXXXX";
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	write_file(path, "max-lease = 7s\n");
	start_and_connect(FLAGS("--config", path));
	assert_int_equal(max_lease_ms(), 7000);
	write_file(path, "max-lease = 9s\n");
	assert_int_equal(kill(process.pid, SIGHUP), 0);
	assert_true(node_process_says(&process, "read again"));
	assert_int_equal(max_lease_ms(), 9000);
	/* A mistake changes nothing and ends nothing. */
	write_file(path, "max-lease = soon\n");
	assert_int_equal(kill(process.pid, SIGHUP), 0);
	assert_true(node_process_says(&process, "not taken over"));
	assert_int_equal(max_lease_ms(), 9000);
	unlink(path);
}

static void expect_failure(const char *const *flags, int status, const char *message)
{
	struct node_process other;

	assert_true(node_process_spawn(&other, NULL, flags));
	assert_int_equal(node_process_wait(&other, 10000), status);
	assert_true(node_process_says(&other, message));
	assert_int_equal(access(other.port_file, F_OK), -1);
	node_process_stop(&other);
}

static void a_taken_port_is_named(void **state)
{
	char grpc[32], data[32], http[32];

	(void)state;
	start_and_connect(FLAGS(NULL));
	snprintf(grpc, sizeof(grpc), "127.0.0.1:%u", process.grpc);
	snprintf(data, sizeof(data), "127.0.0.1:%u", process.data);
	snprintf(http, sizeof(http), "127.0.0.1:%u", process.http);
	expect_failure(
		FLAGS("--listen", grpc, "--data-listen", "127.0.0.1:0", "--http-listen", "none"), 1,
		grpc);
	expect_failure(FLAGS("--data-listen", data), 1, data);
	expect_failure(FLAGS("--http-listen", http), 1, http);
	assert_int_equal(node_put(&node, 1), OK); /* the first one does not mind */
}

static void start_up_errors_say_what_to_do(void **state)
{
	(void)state;
	expect_failure(FLAGS("--pool-size", "100TiB"), 1, "lower --pool-size");
	expect_failure(FLAGS("--huge-pages", "--pool-size", "4TiB"), 1, "vm.nr_hugepages");
	expect_failure(FLAGS("--port-file", "/proc/ports"), 1, "--port-file /proc/ports");
	expect_failure(FLAGS("--port-file", "/nonexistent/ports"), 1, "choose a place");
	expect_failure(FLAGS("--shm-dir", "/proc/shm"), 1, "/proc/shm");
	expect_failure(FLAGS("--listen", "not-an-address-at-all:x"), 2, "--listen");
	expect_failure(FLAGS("--frobnicate"), 2, "frobnicate");
	expect_failure(FLAGS("--tls-certificate", "/a.pem", "--tls-key", "/a.key"), 2, "--tls-ca");
	expect_failure(FLAGS("--tls-certificate", "/nonexistent.pem", "--tls-key", "/a.key",
			     "--tls-ca", "/ca.pem"),
		       1, "cannot open");
}

static void help_and_version_are_enough(void **state)
{
	struct node_process other;

	(void)state;
	assert_true(node_process_spawn(&other, NULL, FLAGS("--help")));
	assert_int_equal(node_process_wait(&other, 5000), 0);
	assert_true(node_process_says(&other, "--max-identities"));
	assert_true(node_process_says(&other, "Exit status"));
	node_process_stop(&other);
	assert_true(node_process_spawn(&other, NULL, FLAGS("--version")));
	assert_int_equal(node_process_wait(&other, 5000), 0);
	assert_true(node_process_says(&other, "qmla-node 0.1.0"));
	node_process_stop(&other);
}

/* A limit of file sizes hits the pool's memory: an error with the remedy, not SIGXFSZ. */
static void a_file_size_limit_is_an_error(void **state)
{
	struct node_process other;

	(void)state;
	assert_true(node_process_spawn(&other, "ulimit -f 100; exec", FLAGS(NULL)));
	assert_int_equal(node_process_wait(&other, 10000), 1);
	assert_true(node_process_says(&other, "lower --pool-size"));
	node_process_stop(&other);
}

/* Scenario 10: a restarted node is empty, and says that old handles are not its own. */
static void another_life_refuses_old_handles(void **state)
{
	char listen[64];
	uint64_t before;

	(void)state;
	start_and_connect(FLAGS(NULL));
	assert_int_equal(node_put(&node, 1), OK);
	Qmla__V1__LookupResponse *leased = node_lookup(&node, 1, 1, 60000);

	before = node.incarnation;
	snprintf(listen, sizeof(listen), "%s", process.target);
	assert_int_equal(kill(process.pid, SIGKILL), 0);
	assert_int_equal(node_process_wait(&process, 5000), 128 + SIGKILL);
	node_process_stop(&process);
	assert_true(node_process_start(&process, FLAGS("--listen", listen, "--data-listen",
						       "127.0.0.1:0", "--http-listen", "none")));
	/* The channel finds the new life by itself; the handles do not fit. */
	qmc_time_t limit = qmc_clock_after(10 * QMC_NS_PER_S);
	uint64_t lease = leased->lease;
	Qmla__V1__ReleaseRequest request = QMLA__V1__RELEASE_REQUEST__INIT;
	Qmla__V1__ReleaseResponse *response;
	qmla_status_t status;

	request.incarnation = before;
	request.leases = &lease;
	request.n_leases = 1;
	do {
		status = node_call(&node, "Release", &request.base,
				   &qmla__v1__release_response__descriptor, &response);
	} while (status == QMLA_ERR_UNAVAILABLE && qmc_clock_left(limit) > 0);
	assert_int_equal(status, QMLA_ERR_PEER_RESTARTED);
	assert_null(node_lookup(&node, 1, 1, 0)); /* not connected to this life */
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
	assert_true(node.incarnation != before);
	assert_int_equal(node_has(&node, 1), QMLA__V1__CODE__CODE_NOT_FOUND);
	qmp_message_free(&leased->base);
}

static void ipv6_from_end_to_end(void **state)
{
	struct qmc_address loopback = {"::1", 0};
	uint16_t port;
	int fd;

	(void)state;
	if (qmc_tcp_listen(&loopback, &fd, &port) != QMLA_OK) {
		print_message("no IPv6 on this machine\n");
		skip();
	}
	close(fd);
	assert_true(node_process_start(&process, FLAGS("--listen", "[::1]:0")));
	snprintf(process.target, sizeof(process.target), "[::1]:%u", process.grpc);
	assert_true(node_attach(&node, process.target));
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
	assert_int_equal(node_put(&node, 1), OK);
	assert_int_equal(node_has(&node, 1), OK);
}

static void an_idle_node_sleeps(void **state)
{
	double before, used;

	(void)state;
	start_and_connect(FLAGS(NULL));
	assert_int_equal(node_put(&node, 1), OK);
	qmp_message_free(&node_lookup(&node, 1, 1, 60000)->base);
	qmc_clock_sleep_until(qmc_clock_after(500 * QMC_NS_PER_MS));
	before = node_process_cpu(&process);
	qmc_clock_sleep_until(qmc_clock_after(2 * QMC_NS_PER_S));
	used = node_process_cpu(&process) - before;
	print_message("%.3f s of processor time in 2 s\n", used);
	assert_true(used <= 0.02); /* 1 % of a core */
}

int main(void)
{
#define T(name) cmocka_unit_test_teardown(name, teardown)
	const struct CMUnitTest tests[] = {
		T(it_tells_its_ports_and_its_health),
		T(drain_waits_for_a_lease_and_takes_nothing_new),
		T(drain_ends_at_its_time),
		T(a_second_signal_ends_it_at_once),
		T(sighup_reads_the_file_again),
		T(a_taken_port_is_named),
		T(start_up_errors_say_what_to_do),
		T(help_and_version_are_enough),
		T(a_file_size_limit_is_an_error),
		T(another_life_refuses_old_handles),
		T(ipv6_from_end_to_end),
		T(an_idle_node_sleeps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
