/* SPDX-License-Identifier: Apache-2.0 */
/* A server that ran out of file descriptors serves again once there are some. */
#include "cmocka_all.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "proto/accept_watch.h"
#include "proto/rpc_client.h"
#include "proto/rpc_keeper.h"

#define DESCRIPTORS 128

struct streams {
	_Atomic int ended, allowed;
};

static void end_streams(void *user)
{
	((struct streams *)user)->ended++;
}

static void allow_streams(void *user)
{
	((struct streams *)user)->allowed++;
}

static int connect_to(uint16_t port)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static qmla_status_t ask_health(uint16_t port)
{
	char target[32];
	struct qmp_channel_config config = {.target = target};
	struct qmp_channel *channel;
	qmla_status_t status;

	snprintf(target, sizeof(target), "127.0.0.1:%u", port);
	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	status = qmp_health_check(channel, "", qmc_clock_after(QMC_NS_PER_S));
	qmp_channel_destroy(channel);
	return status;
}

/* Takes every descriptor, so that the server's accept fails; returns how many. */
static int exhaust(uint16_t port, int fds[DESCRIPTORS])
{
	uint64_t before = qmp_accept_failures();
	qmc_time_t limit = qmc_clock_after(10 * QMC_NS_PER_S);
	int count = 0;

	while (qmp_accept_failures() == before && qmc_clock_left(limit) > 0) {
		int fd = count < DESCRIPTORS ? connect_to(port) : -1;

		if (fd >= 0)
			fds[count++] = fd;
		else
			qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	}
	assert_true(qmp_accept_failures() > before);
	return count;
}

static void serves_again(void **state)
{
	struct rlimit limit;
	struct streams streams = {0, 0};
	struct qmp_keeper_config config = {
		.server = {.listen = "127.0.0.1:0", .threads = 2},
		.user = &streams,
		.before_restart = end_streams,
		.after_restart = allow_streams,
		.grace_ns = QMC_NS_PER_MS,
	};
	struct qmp_keeper *keeper;
	int fds[DESCRIPTORS], count;
	qmc_time_t patience;
	uint16_t port;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = DESCRIPTORS;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(qmp_keeper_create(&config, &keeper), QMLA_OK);
	port = qmp_keeper_port(keeper);
	qmp_keeper_set_serving(keeper, true);
	assert_int_equal(ask_health(port), QMLA_OK);
	count = exhaust(port, fds);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	patience = qmc_clock_after(20 * QMC_NS_PER_S);
	while (!(streams.allowed == 1 && qmp_keeper_listens(keeper)) &&
	       qmc_clock_left(patience) > 0)
		qmc_clock_sleep_until(qmc_clock_after(10 * QMC_NS_PER_MS));
	assert_int_equal(streams.ended, 1);
	assert_int_equal(streams.allowed, 1);
	assert_int_equal(qmp_keeper_port(keeper), port);
	assert_int_equal(ask_health(port), QMLA_OK); /* and still says that it serves */
	qmp_keeper_destroy(keeper, QMC_NS_PER_S);
}

static void a_taken_port_is_an_error(void **state)
{
	struct qmp_keeper_config config = {.server = {.listen = "127.0.0.1:0", .threads = 1}};
	struct qmp_keeper *first, *second = NULL;
	char listen[32];

	(void)state;
	assert_int_equal(qmp_keeper_create(&config, &first), QMLA_OK);
	snprintf(listen, sizeof(listen), "127.0.0.1:%u", qmp_keeper_port(first));
	config.server.listen = listen;
	assert_int_equal(qmp_keeper_create(&config, &second), QMLA_ERR_BUSY);
	assert_null(second);
	qmp_keeper_destroy(first, 0);
	qmp_keeper_destroy(NULL, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_taken_port_is_an_error),
		cmocka_unit_test(serves_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
