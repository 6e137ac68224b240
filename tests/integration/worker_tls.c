/* SPDX-License-Identifier: Apache-2.0 */
/* Mutual TLS from end to end, with certificates that openssl(1) makes for this run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/log.h"
#include "proto/rpc_client.h"
#include "worker_ask.h"
#include "worker_cluster.h"
#include "worker_prompts.h"

#define FILE_PATH 400

static struct cluster cluster;
static struct process *node, *prefill, *decode;

/* Of the cluster's members, of a client they trust, and of one that another authority signed. */
struct party {
	char ca[FILE_PATH], certificate[FILE_PATH], key[FILE_PATH];
	struct qmp_tls tls;
};
static struct party member, client, stranger;

static const char script[] =
	"set -e; cd \"$1\"; exec 2>openssl.log\n"
	"key() { openssl ecparam -name prime256v1 -genkey -noout -out \"$1.key\"; }\n"
	"for ca in ca other; do key $ca; openssl req -x509 -new -key $ca.key -subj /CN=$ca"
	" -days 2 -out $ca.pem; done\n"
	"sign() { key \"$1\"; openssl req -new -key \"$1.key\" -subj \"/CN=$1\" -out \"$1.csr\";"
	" printf 'subjectAltName=%s\\n' \"$3\" >\"$1.ext\"; openssl x509 -req -in \"$1.csr\""
	" -CA \"$2.pem\" -CAkey \"$2.key\" -CAcreateserial -days 2 -extfile \"$1.ext\""
	" -out \"$1.pem\"; }\n"
	"sign member ca IP:127.0.0.1,DNS:localhost\n"
	"sign client ca DNS:client\n"
	"sign stranger other DNS:client\n";

static void party_fill(struct party *party, const char *name)
{
	snprintf(party->ca, sizeof(party->ca), "%s/ca.pem", cluster.folder);
	snprintf(party->certificate, sizeof(party->certificate), "%s/%s.pem", cluster.folder, name);
	snprintf(party->key, sizeof(party->key), "%s/%s.key", cluster.folder, name);
	party->tls = (struct qmp_tls){party->ca, party->certificate, party->key};
}

static bool make_certificates(void)
{
	char path[512], command[1200];
	FILE *file;

	snprintf(path, sizeof(path), "%s/make.sh", cluster.folder);
	file = fopen(path, "w");
	if (!file)
		return false;
	fputs(script, file);
	fclose(file);
	party_fill(&member, "member");
	party_fill(&client, "client");
	party_fill(&stranger, "stranger");
	snprintf(command, sizeof(command), "sh '%s' '%s'", path, cluster.folder);
	return system(command) == 0;
}

static struct process *start_member(const char *name, const char *program,
				    const char *const *arguments)
{
	const char *all[24];
	size_t n = 0;

	while (*arguments)
		all[n++] = *arguments++;
	all[n++] = "--tls-ca";
	all[n++] = member.ca;
	all[n++] = "--tls-certificate";
	all[n++] = member.certificate;
	all[n++] = "--tls-key";
	all[n++] = member.key;
	all[n] = NULL;
	return cluster_start(&cluster, name, NULL, program, all);
}

static int start_all(void **state)
{
	const char *const node_flags[] = {"--pool-size", "32MiB", NULL};
	const char *prefill_flags[] = {"prefill", "--model", QMLA_TEST_DATA "/mla-s",
				       "--nodes", NULL,      NULL};
	const char *decode_flags[] = {
		"decode",    "--model", QMLA_TEST_DATA "/mla-s", "--nodes", NULL,
		"--prefill", NULL,      "--no-local-reuse",      NULL};

	(void)state;
	cluster.tls = &client.tls;
	node = start_member("node", "qmla-node", node_flags);
	if (!node)
		return -1;
	prefill_flags[4] = decode_flags[4] = node->address;
	prefill = start_member("prefill", "qmla-worker", prefill_flags);
	if (!prefill)
		return -1;
	decode_flags[6] = prefill->address;
	decode = start_member("decode", "qmla-worker", decode_flags);
	return decode ? 0 : -1;
}

/* Every hop of a request: client to decode worker, to prefill worker, all to the node. */
static void test_a_request_with_certificates(void **state)
{
	static struct prompt prompt;
	static struct answer cold, warm;
	struct ask ask;

	(void)state;
	prompt_make(&prompt, 700, 1);
	ask = (struct ask){.address = decode->address,
			   .prompt = prompt.bytes,
			   .prompt_bytes = prompt.count,
			   .max_tokens = 20,
			   .tls = &client.tls};
	ask_worker(&ask, &cold);
	assert_int_equal(cold.status, QMLA_OK);
	assert_string_equal(cold.notes, "");
	assert_int_equal(cold.usage.blocks_prefilled, 699 / 64);
	ask_worker(&ask, &warm);
	assert_int_equal(warm.status, QMLA_OK);
	assert_int_equal(warm.usage.blocks_hit, 699 / 64);
	assert_int_equal(warm.usage.blocks_local, 0);
	assert_true(same_text(&cold, &warm));
}

/* "qmla COMMAND" with the files of @p party, NULL: none; its output and its exit status. */
static int qmla(const char *command, const struct party *party, char *output, size_t size)
{
	char line[3000];
	FILE *pipe;
	size_t got;
	int status;

	snprintf(line, sizeof(line), "'%s/bin/qmla' %s %s%s %s%s %s%s 2>&1", QMLA_BINARY_DIR,
		 command, party ? "--tls-ca " : "", party ? party->ca : "",
		 party ? "--tls-certificate " : "", party ? party->certificate : "",
		 party ? "--tls-key " : "", party ? party->key : "");
	pipe = popen(line, "r");
	assert_non_null(pipe);
	got = fread(output, 1, size - 1, pipe);
	output[got] = '\0';
	status = pclose(pipe);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_the_command_line(void **state)
{
	char command[256], output[4096];

	(void)state;
	snprintf(command, sizeof(command),
		 "generate --decode %s --prompt hello --max-tokens 5 --ignore-eos --json "
		 "--timeout 20s",
		 decode->address);
	assert_int_equal(qmla(command, &client, output, sizeof(output)), 0);
	assert_non_null(strstr(output, "\"generated_tokens\":5"));
	assert_int_equal(qmla(command, NULL, output, sizeof(output)), 3);
	assert_non_null(strstr(output, "\"status\":\"unavailable\""));
	assert_int_equal(qmla(command, &stranger, output, sizeof(output)), 3);
	snprintf(command, sizeof(command), "health %s %s %s", node->address, prefill->address,
		 decode->address);
	assert_int_equal(qmla(command, &client, output, sizeof(output)), 0);
	assert_int_equal(qmla(command, NULL, output, sizeof(output)), 1);
	snprintf(command, sizeof(command), "status --nodes %s", node->address);
	assert_int_equal(qmla(command, &client, output, sizeof(output)), 0);
	assert_int_equal(qmla(command, NULL, output, sizeof(output)), 3);
}

static void expect_refused(const char *address, const struct qmp_tls *tls)
{
	struct qmp_channel_config config = {.target = address, .tls = tls};
	struct qmp_channel *channel;

	assert_int_equal(qmp_channel_create(&config, &channel), QMLA_OK);
	assert_int_not_equal(qmp_health_check(channel, "", qmc_clock_after(10 * QMC_NS_PER_S)),
			     QMLA_OK);
	qmp_channel_destroy(channel);
}

static void test_plain_clients_and_strangers_are_refused(void **state)
{
	static struct answer answer;
	const struct process *const servers[] = {node, prefill, decode};
	struct ask ask = {.address = decode->address,
			  .prompt = (const uint8_t *)"hello",
			  .prompt_bytes = 5,
			  .max_tokens = 1,
			  .timeout_ns = 10 * QMC_NS_PER_S};

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		expect_refused(servers[i]->address, NULL);
		expect_refused(servers[i]->address, &stranger.tls);
	}
	ask_worker(&ask, &answer);
	assert_int_not_equal(answer.status, QMLA_OK);
	assert_int_equal(answer.count, 0);
}

/* A worker without certificates runs, and gets nothing from a node that wants them. */
static void test_a_plain_worker_gets_no_blocks(void **state)
{
	static const char *const no_memory[] = {"--no-local-reuse", NULL};
	static struct prompt prompt;
	static struct answer answer;
	struct process *plain;
	struct ask ask;

	(void)state;
	cluster.tls = NULL;
	plain = cluster_worker(&cluster, "decode", node->address, NULL, no_memory);
	cluster.tls = &client.tls;
	assert_non_null(plain);
	prompt_make(&prompt, 700, 1); /* the node has its blocks */
	ask = (struct ask){.address = plain->address,
			   .prompt = prompt.bytes,
			   .prompt_bytes = prompt.count,
			   .max_tokens = 5};
	ask_worker(&ask, &answer);
	assert_int_equal(answer.status, QMLA_OK);
	assert_int_equal(answer.usage.blocks_hit, 0);
	assert_non_null(strstr(answer.notes, node->address));
	assert_int_equal(process_stop(plain), 0);
}

static void test_bad_files_are_named_at_start(void **state)
{
	const char *flags[] = {"decode",    "--model",           QMLA_TEST_DATA "/mla-s",
			       "--listen",  "127.0.0.1:0",       "--tls-ca",
			       member.ca,   "--tls-certificate", member.certificate,
			       "--tls-key", client.key,          NULL};
	struct process *worker = cluster_spawn(&cluster, "mixed", "qmla-worker", flags);

	(void)state;
	assert_non_null(worker);
	assert_int_equal(process_wait(worker, 20000), 1);
	assert_true(process_says(worker, "client.key"));
	flags[6] = "/no/such/ca.pem";
	worker = cluster_spawn(&cluster, "missing", "qmla-worker", flags);
	assert_non_null(worker);
	assert_int_equal(process_wait(worker, 20000), 1);
	assert_true(process_says(worker, "/no/such/ca.pem"));
}

static void test_servers_end_cleanly(void **state)
{
	(void)state;
	assert_int_equal(process_stop(decode), 0);
	assert_int_equal(process_stop(prefill), 0);
	assert_int_equal(process_stop(node), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_request_with_certificates),
		cmocka_unit_test(test_the_command_line),
		cmocka_unit_test(test_plain_clients_and_strangers_are_refused),
		cmocka_unit_test(test_a_plain_worker_gets_no_blocks),
		cmocka_unit_test(test_bad_files_are_named_at_start),
		cmocka_unit_test(test_servers_end_cleanly),
	};
	int failed;

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (!cluster_open(&cluster))
		return 77;
	if (!make_certificates()) {
		printf("skipped: openssl(1) makes no certificates here\n");
		cluster_close(&cluster, false);
		return 77;
	}
	failed = cmocka_run_group_tests(tests, start_all, NULL);
	cluster_close(&cluster, failed != 0);
	return failed;
}
