/* SPDX-License-Identifier: Apache-2.0 */
/* Listening and addresses of the tcp server. */
#include <setjmp.h>
#include <stdarg.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/address.h"
#include "owner.h"
#include "transport/blob.h"

static qmla_status_t allow(void *user, const struct qmt_access_request *request, uint64_t *token)
{
	(void)user;
	(void)request;
	*token = 0;
	return QMLA_OK;
}

static void ignore(void *user, const struct qmt_access_request *request, uint64_t token,
		   qmla_status_t status)
{
	(void)user;
	(void)request;
	(void)token;
	(void)status;
}

static qmla_status_t listen_at(const char *text, const char *advertise, struct qmt_server **server)
{
	struct qmt_server_config config = {.listen = text,
					   .advertise = advertise,
					   .threads = 1,
					   .callbacks = {.authorize = allow, .finished = ignore}};

	return qmt_tcp_ops.server_create(&config, server);
}

static void text_of(struct qmt_server *server, char text[QMT_ADDRESS_TEXT_MAX])
{
	struct qmt_server_address address;
	struct qmt_identity identity;

	assert_int_equal(qmt_tcp_ops.server_address(server, &address), QMLA_OK);
	assert_int_equal(qmt_address_decode(&address, QMT_KIND_TCP, &identity, text), QMLA_OK);
}

static void connects(struct qmt_server *server)
{
	struct qmt_server_address address;
	struct qmt_endpoint *endpoint = NULL;

	assert_int_equal(qmt_tcp_ops.server_address(server, &address), QMLA_OK);
	assert_int_equal(
		qmt_tcp_ops.endpoint_create(&address, qmc_clock_after(5 * QMC_NS_PER_S), &endpoint),
		QMLA_OK);
	qmt_tcp_ops.endpoint_destroy(endpoint);
}

static void listens_on_both_families(void **state)
{
	static const char *const places[] = {"127.0.0.1:0", "[::1]:0", "localhost:0", "0",
					     "[::]:0"};

	(void)state;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		struct qmt_server *server = NULL;

		assert_int_equal(listen_at(places[i], NULL, &server), QMLA_OK);
		connects(server);
		qmt_tcp_ops.server_destroy(server);
	}
}

static void the_address_names_the_advertised_host(void **state)
{
	struct qmt_server *server = NULL;
	char text[QMT_ADDRESS_TEXT_MAX];
	struct qmc_address address;

	(void)state;
	assert_int_equal(listen_at("0", "localhost", &server), QMLA_OK);
	text_of(server, text);
	assert_int_equal(qmc_address_parse(text, &address), QMLA_OK);
	assert_string_equal(address.host, "localhost");
	assert_int_not_equal(address.port, 0);
	connects(server);
	qmt_tcp_ops.server_destroy(server);
	assert_int_equal(listen_at("0", "::1", &server), QMLA_OK);
	text_of(server, text);
	assert_memory_equal(text, "[::1]:", 6);
	connects(server);
	qmt_tcp_ops.server_destroy(server);
}

static void bad_places_are_refused(void **state)
{
	struct qmt_server *server = NULL, *second = NULL;
	char text[QMT_ADDRESS_TEXT_MAX];
	char long_host[400];

	(void)state;
	assert_int_equal(listen_at("nonsense", NULL, &server), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(listen_at("[::1]", NULL, &server), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(listen_at("127.0.0.1:70000", NULL, &server), QMLA_ERR_INVALID_ARGUMENT);
	memset(long_host, 'a', sizeof(long_host) - 1);
	long_host[sizeof(long_host) - 1] = '\0';
	assert_int_equal(listen_at("[::1]:0", long_host, &server), QMLA_ERR_INVALID_ARGUMENT);
	assert_null(server);
	assert_int_equal(listen_at("[::1]:0", NULL, &server), QMLA_OK);
	text_of(server, text);
	assert_int_equal(listen_at(text, NULL, &second), QMLA_ERR_BUSY);
	qmt_tcp_ops.server_destroy(server);
	/* And the port is free again at once. */
	assert_int_equal(listen_at(text, NULL, &second), QMLA_OK);
	qmt_tcp_ops.server_destroy(second);
	qmt_tcp_ops.server_destroy(NULL);
	qmt_tcp_ops.endpoint_destroy(NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(listens_on_both_families),
		CASE(the_address_names_the_advertised_host),
		CASE(bad_places_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
