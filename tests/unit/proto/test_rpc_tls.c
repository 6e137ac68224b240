/* SPDX-License-Identifier: Apache-2.0 */
/* Mutual TLS, with certificates that openssl(1) makes for this run. */
#include "cmocka_all.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "fixture.h"

#define ECHO    "/test.Unary/Echo"
#define TIMEOUT (20 * QMC_NS_PER_S)

static char folder[64];

/* Two authorities; node and client certificates of the first, one client's of the second. */
static const char script[] =
	"set -e; cd \"$1\"; exec 2>openssl.log\n"
	"key() { openssl ecparam -name prime256v1 -genkey -noout -out \"$1.key\"; }\n"
	"for ca in ca other-ca; do key $ca; openssl req -x509 -new -key $ca.key -subj /CN=$ca"
	" -days 2 -out $ca.pem; done\n"
	"sign() { key \"$1\"; openssl req -new -key \"$1.key\" -subj \"/CN=$1\" -out \"$1.csr\";"
	" printf 'subjectAltName=%s\\n' \"$3\" >\"$1.ext\"; openssl x509 -req -in \"$1.csr\""
	" -CA \"$2.pem\" -CAkey \"$2.key\" -CAcreateserial -days 2 -extfile \"$1.ext\""
	" -out \"$1.pem\"; }\n"
	"sign node ca IP:127.0.0.1,DNS:localhost\n"
	"sign elsewhere ca DNS:elsewhere.example\n"
	"sign client ca DNS:client\n"
	"sign stranger other-ca DNS:client\n"
	"cp node.key unreadable.txt; echo nothing >unreadable.txt\n"
	"openssl ec -in node.key -aes128 -passout pass:secret -out locked.key\n";

static char *path_of(const char *name)
{
	static char paths[8][128];
	static unsigned next;
	char *path = paths[next++ % 8];

	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static int setup(void **state)
{
	char command[256];
	FILE *file;

	(void)state;
	snprintf(folder, sizeof(folder), "/tmp/qmp-tls-XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	file = fopen(path_of("make.sh"), "w");
	if (!file)
		return -1;
	fputs(script, file);
	fclose(file);
	/* No gRPC yet in this process: system() may fork. */
	snprintf(command, sizeof(command), "sh %s/make.sh %s", folder, folder);
	return system(command);
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

static void serve(struct fixture *fixture, const char *name)
{
	char key[32], pem[32];
	struct qmp_tls tls;
	struct qmp_server_config config = {.tls = &tls};

	snprintf(key, sizeof(key), "%s.key", name);
	snprintf(pem, sizeof(pem), "%s.pem", name);
	tls = (struct qmp_tls){path_of("ca.pem"), path_of(pem), path_of(key)};
	fixture_serve(fixture, &config);
}

/* One call as `name`, whose certificate is checked against `ca`; NULL: plain text. */
static qmla_status_t call_as(struct fixture *fixture, const char *host, const char *name,
			     const char *ca)
{
	char key[32], pem[32], authority[32], target[64];
	struct qmp_channel_config config = {.target = target};
	struct qmp_channel *channel;
	struct qmp_tls tls;
	qmla_status_t status;

	snprintf(target, sizeof(target), "%s:%u", host, qmp_server_port(fixture->server));
	if (name) {
		snprintf(key, sizeof(key), "%s.key", name);
		snprintf(pem, sizeof(pem), "%s.pem", name);
		snprintf(authority, sizeof(authority), "%s.pem", ca);
		tls = (struct qmp_tls){path_of(authority), path_of(pem), path_of(key)};
		config.tls = &tls;
	}
	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	status = fixture_call(channel, ECHO, 1, 16, 0, MS(5000), NULL, NULL);
	qmp_channel_destroy(channel);
	return status;
}

static void test_known_clients_are_served(void **state)
{
	struct fixture fixture;

	(void)state;
	serve(&fixture, "node");
	assert_int_equal(call_as(&fixture, "127.0.0.1", "client", "ca"), QMLA_OK);
	assert_int_equal(call_as(&fixture, "localhost", "client", "ca"), QMLA_OK);
	qmp_server_destroy(fixture.server, MS(1000));
}

static void test_strangers_and_plain_text_are_refused(void **state)
{
	struct fixture fixture;

	(void)state;
	serve(&fixture, "node");
	assert_int_equal(call_as(&fixture, "127.0.0.1", "stranger", "ca"), QMLA_ERR_UNAVAILABLE);
	assert_int_equal(call_as(&fixture, "127.0.0.1", NULL, NULL), QMLA_ERR_UNAVAILABLE);
	assert_int_equal(call_as(&fixture, "127.0.0.1", "client", "ca"), QMLA_OK);
	qmp_server_destroy(fixture.server, MS(1000));
}

static void test_clients_check_the_server(void **state)
{
	struct fixture fixture;

	(void)state;
	serve(&fixture, "node");
	assert_int_equal(call_as(&fixture, "127.0.0.1", "client", "other-ca"),
			 QMLA_ERR_UNAVAILABLE);
	qmp_server_destroy(fixture.server, MS(1000));
	serve(&fixture, "elsewhere"); /* right authority, wrong name */
	assert_int_equal(call_as(&fixture, "127.0.0.1", "client", "ca"), QMLA_ERR_UNAVAILABLE);
	qmp_server_destroy(fixture.server, MS(1000));
}

static void test_a_tls_client_of_a_plain_server(void **state)
{
	struct qmp_server_config config = {0};
	struct fixture fixture;

	(void)state;
	fixture_serve(&fixture, &config);
	assert_int_equal(call_as(&fixture, "127.0.0.1", "client", "ca"), QMLA_ERR_UNAVAILABLE);
	qmp_server_destroy(fixture.server, MS(1000));
}

static void test_bad_files_are_found_at_the_start(void **state)
{
	static const struct {
		const char *ca, *certificate, *key;
		qmla_status_t status;
	} cases[] = {
		{"missing.pem", "node.pem", "node.key", QMLA_ERR_NOT_FOUND},
		{"ca.pem", "missing.pem", "node.key", QMLA_ERR_NOT_FOUND},
		{"ca.pem", "node.pem", "missing.key", QMLA_ERR_NOT_FOUND},
		{"unreadable.txt", "node.pem", "node.key", QMLA_ERR_FORMAT},
		{"ca.pem", "unreadable.txt", "node.key", QMLA_ERR_FORMAT},
		{"ca.pem", "node.pem", "unreadable.txt", QMLA_ERR_FORMAT},
		{"ca.pem", "node.pem", "client.key", QMLA_ERR_FORMAT}, /* not its key */
		{"ca.pem", "node.pem", "locked.key", QMLA_ERR_FORMAT},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct qmp_tls tls = {path_of(cases[i].ca), path_of(cases[i].certificate),
				      path_of(cases[i].key)};
		struct qmp_server_config server_config = {.listen = "127.0.0.1:0", .tls = &tls};
		struct qmp_channel_config config = {.target = "127.0.0.1:1", .tls = &tls};
		struct qmp_channel *channel = NULL;
		struct qmp_server *server = NULL;

		assert_int_equal(qmp_server_create(&server_config, NULL, 0, &server),
				 cases[i].status);
		assert_int_equal(qmp_channel_create(&config, &channel), cases[i].status);
		assert_null(server);
		assert_null(channel);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known_clients_are_served),
		cmocka_unit_test(test_strangers_and_plain_text_are_refused),
		cmocka_unit_test(test_clients_check_the_server),
		cmocka_unit_test(test_a_tls_client_of_a_plain_server),
		cmocka_unit_test(test_bad_files_are_found_at_the_start),
	};

	return cmocka_run_group_tests_name("rpc_tls", tests, setup, teardown);
}
