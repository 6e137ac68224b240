/* SPDX-License-Identifier: Apache-2.0 */
#include "common/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"

static void parses_every_form(void **state)
{
	static const struct {
		const char *text, *host;
		uint16_t port;
		const char *again;
	} good[] = {
		{"10.0.0.1:7000", "10.0.0.1", 7000, "10.0.0.1:7000"},
		{"node-3.cache:1", "node-3.cache", 1, "node-3.cache:1"},
		{"[::1]:65535", "::1", 65535, "[::1]:65535"},
		{"[fe80::1%eth0]:9", "fe80::1%eth0", 9, "[fe80::1%eth0]:9"},
		{":80", "", 80, "[::]:80"},
		{"0", "", 0, "[::]:0"},
	};
	struct qmc_address address;
	char text[QMC_ADDRESS_TEXT_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(qmc_address_parse(good[i].text, &address), QMLA_OK);
		assert_string_equal(address.host, good[i].host);
		assert_int_equal(address.port, good[i].port);
		qmc_address_format(&address, text);
		assert_string_equal(text, good[i].again);
	}
}

static void refuses_nonsense(void **state)
{
	static const char *const bad[] = {"",           "host",    "host:",   "host:x",
					  "host:65536", "::1:80",  "[::1]",   "[::1]x:1",
					  "host:-1",    "host:+1", "host: 1", "[::1:80"};
	struct qmc_address address = {.host = "kept", .port = 5};
	char huge[400];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(qmc_address_parse(bad[i], &address), QMLA_ERR_FORMAT);
	memset(huge, 'a', sizeof(huge));
	memcpy(huge + sizeof(huge) - 3, ":1", 3);
	assert_int_equal(qmc_address_parse(huge, &address), QMLA_ERR_FORMAT);
	assert_string_equal(address.host, "kept");
}

static void connect_reaches_listen(const char *host)
{
	struct qmc_address address = {.port = 0};
	qmc_time_t deadline = qmc_clock_after(5 * QMC_NS_PER_S);
	struct sockaddr_storage sa;
	socklen_t length = sizeof(sa);
	char text[QMC_ADDRESS_TEXT_MAX];
	int listener, client, second;
	uint16_t port;

	memcpy(address.host, host, strlen(host) + 1);
	assert_int_equal(qmc_tcp_listen(&address, &listener, &port), QMLA_OK);
	assert_int_not_equal(port, 0);
	address.port = port;
	assert_int_equal(qmc_tcp_listen(&address, &second, &port), QMLA_ERR_BUSY);
	if (!host[0])
		memcpy(address.host, "127.0.0.1", 10);
	assert_int_equal(qmc_tcp_connect(&address, deadline, &client), QMLA_OK);
	assert_int_equal(getpeername(client, (struct sockaddr *)&sa, &length), 0);
	qmc_sockaddr_format((struct sockaddr *)&sa, length, text);
	assert_non_null(strstr(text, strchr(host, ':') ? "[::1]:" : "127.0.0.1:"));
	close(client);
	close(listener);
	assert_int_equal(qmc_tcp_connect(&address, deadline, &client), QMLA_ERR_UNAVAILABLE);
}

static void listens_and_connects_on_both_families(void **state)
{
	(void)state;
	connect_reaches_listen("127.0.0.1");
	connect_reaches_listen("::1");
	connect_reaches_listen("");
}

/* 192.0.2.0/24 is for documentation (RFC 5737): no machine has it. */
static void test_a_foreign_address_is_named_as_such(void **state)
{
	const struct qmc_address address = {.host = "192.0.2.1", .port = 0};
	uint16_t port;
	int fd;
	qmla_status_t status = qmc_tcp_listen(&address, &fd, &port);

	(void)state;
	assert_int_equal(status, QMLA_ERR_UNAVAILABLE);
	assert_non_null(strstr(qmc_listen_reason(status), "not an address of this machine"));
	assert_non_null(strstr(qmc_listen_reason(QMLA_ERR_BUSY), "in use"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parses_every_form),
		cmocka_unit_test(refuses_nonsense),
		cmocka_unit_test(listens_and_connects_on_both_families),
		cmocka_unit_test(test_a_foreign_address_is_named_as_such),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
