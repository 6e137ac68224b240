/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's side of the cache for the tests with several hosts: does what its standard
 * input says, a command a line, and answers each with one line of JSON.
 *
 *   publish FIRST COUNT   seals blocks FIRST… of the chain and publishes them
 *   fetch COUNT           fetches the first COUNT blocks and compares every byte
 *   clear                 removes all of them from the nodes
 *   chain NUMBER          goes over to another chain of keys, with other bytes
 *
 * Arguments: NODES TRANSPORT [layers [timeout ms [lease ms [identity, a number]]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qmla/cache.h>

#include "common/clock.h"
#include "kernels/block.h"

#define BLOCKS_MAX 256

struct client {
	qmla_client_t *client;
	qmla_identity_t identity;
	qmla_layout_t layout;
	struct qmk_layout bytes;
	uint32_t timeout_ms;
	unsigned chain;
	qmla_key_t keys[BLOCKS_MAX];
	void *written[BLOCKS_MAX], *read[BLOCKS_MAX];
	uint8_t *memory;
};

/* The same bytes for the same block in every process; other chains have others. */
static void fill(struct client *client, size_t i)
{
	struct qmk_block_info info = {.generation = 0};
	uint64_t x = (client->chain * UINT64_C(1000003) + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
	uint8_t *block = client->written[i];

	for (uint64_t at = 0; at + sizeof(x) <= client->bytes.block_bytes; at += sizeof(x)) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(block + at, &x, sizeof(x));
	}
	memcpy(info.key, client->keys[i].bytes, sizeof(info.key));
	memcpy(info.identity, client->identity.bytes, sizeof(info.identity));
	qmk_block_seal(&client->bytes, &info, block);
}

static qmla_status_t use_chain(struct client *client, unsigned number)
{
	char name[32];
	qmla_key_chain_t chain;
	qmla_status_t status;

	client->chain = number;
	snprintf(name, sizeof(name), "chain-%u", number);
	status = qmla_key_chain_start(&client->identity, name, &chain);
	for (size_t i = 0; i < BLOCKS_MAX && status == QMLA_OK; i++) {
		uint32_t tokens[QMLA_BLOCK_TOKENS];

		for (uint32_t t = 0; t < QMLA_BLOCK_TOKENS; t++)
			tokens[t] = (uint32_t)i * QMLA_BLOCK_TOKENS + t;
		status = qmla_key_chain_extend(&chain, tokens, 1, &client->keys[i]);
	}
	return status;
}

/* How many of the first @count fetched blocks are what was written, but for the generation. */
static size_t intact(struct client *client, size_t count)
{
	size_t good = 0;

	for (size_t i = 0; i < count; i++) {
		fill(client, i);
		good += memcmp((uint8_t *)client->written[i] + client->bytes.header_bytes,
			       (uint8_t *)client->read[i] + client->bytes.header_bytes,
			       client->bytes.block_bytes - client->bytes.header_bytes) == 0;
	}
	return good;
}

static void answer(qmla_status_t status, qmc_time_t begin)
{
	printf("{\"status\":\"%s\",\"ms\":%.1f}\n", qmla_status_name(status),
	       (double)(qmc_clock_now() - begin) / 1e6);
}

static void publish(struct client *client, size_t first, size_t count)
{
	qmla_status_t status = QMLA_OK;
	qmc_time_t begin = qmc_clock_now();

	for (size_t i = first; i < first + count; i++)
		fill(client, i);
	status = qmla_client_publish(client->client, client->keys + first, count,
				     (const void *const *)client->written + first,
				     client->timeout_ms, NULL);
	answer(status, begin);
}

static void fetch(struct client *client, size_t count)
{
	qmla_status_t statuses[BLOCKS_MAX], status;
	qmla_fetch_stats_t stats = {0};
	qmc_time_t begin = qmc_clock_now();
	size_t prefix = 0;
	double ms;

	memset(client->memory + BLOCKS_MAX * client->bytes.block_bytes, 0x5a,
	       count * client->bytes.block_bytes);
	status = qmla_client_fetch(client->client, client->keys, count, client->read,
				   client->timeout_ms, &prefix, statuses, &stats);
	ms = (double)(qmc_clock_now() - begin) / 1e6;
	printf("{\"status\":\"%s\",\"ms\":%.1f,\"prefix\":%zu,\"intact\":%zu,\"corrupt\":%u,"
	       "\"why\":\"%s\"}\n",
	       qmla_status_name(status), ms, prefix, intact(client, prefix), stats.corrupt,
	       prefix < count && status == QMLA_OK ? qmla_status_name(statuses[prefix]) : "");
}

static void obey(struct client *client, const char *line)
{
	size_t first, count;
	unsigned chain;
	qmc_time_t begin = qmc_clock_now();

	if (sscanf(line, "publish %zu %zu", &first, &count) == 2 && first < BLOCKS_MAX &&
	    count <= BLOCKS_MAX - first) {
		publish(client, first, count);
	} else if (sscanf(line, "fetch %zu", &count) == 1 && count <= BLOCKS_MAX) {
		fetch(client, count);
	} else if (sscanf(line, "chain %u", &chain) == 1) {
		answer(use_chain(client, chain), begin);
	} else if (strncmp(line, "clear", 5) == 0) {
		uint64_t removed;

		answer(qmla_client_clear(client->client, client->timeout_ms, &removed), begin);
	} else {
		printf("{\"status\":\"not understood\"}\n");
	}
}

static unsigned argument(int argc, char **argv, int index, unsigned otherwise)
{
	return argc > index ? (unsigned)strtoul(argv[index], NULL, 10) : otherwise;
}

static qmla_status_t prepare(struct client *client, int argc, char **argv)
{
	qmla_client_config_t config = {.struct_size = sizeof(config)};
	qmla_status_t status;

	memset(client->identity.bytes, (int)argument(argc, argv, 6, 0x17),
	       sizeof(client->identity.bytes));
	client->layout = (qmla_layout_t){QMLA_FORMAT_C4R4, argument(argc, argv, 3, 8), 512, 64};
	client->timeout_ms = argument(argc, argv, 4, 5000);
	status = qmk_layout_init(QMK_FORMAT_C4R4, client->layout.layers, 512, 64, &client->bytes);
	if (status != QMLA_OK)
		return status;
	client->memory = aligned_alloc(QMK_ALIGN, 2 * BLOCKS_MAX * client->bytes.block_bytes);
	if (!client->memory)
		return QMLA_ERR_NO_MEMORY;
	for (size_t i = 0; i < BLOCKS_MAX; i++) {
		client->written[i] = client->memory + i * client->bytes.block_bytes;
		client->read[i] = client->memory + (BLOCKS_MAX + i) * client->bytes.block_bytes;
	}
	config.nodes = argv[1];
	config.transport = argv[2];
	config.identity = client->identity;
	config.layout = client->layout;
	config.lease_ms = argument(argc, argv, 5, 0);
	config.connections = 1;
	config.call_timeout_ms = client->timeout_ms;
	config.connect_timeout_ms = client->timeout_ms;
	status = qmla_client_create(&config, &client->client);
	if (status == QMLA_OK)
		status = qmla_client_register_memory(client->client, client->memory,
						     2 * BLOCKS_MAX * client->bytes.block_bytes);
	return status == QMLA_OK ? use_chain(client, 0) : status;
}

int main(int argc, char **argv)
{
	static struct client client;
	char line[256];
	qmla_status_t status;

	if (argc < 3) {
		fprintf(stderr,
			"usage: %s NODES TRANSPORT [layers [timeout ms [lease ms [identity]]]]\n",
			argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	status = prepare(&client, argc, argv);
	if (status != QMLA_OK) {
		fprintf(stderr, "%s: %s\n", argv[0], qmla_status_text(status));
		return 1;
	}
	while (fgets(line, sizeof(line), stdin))
		obey(&client, line);
	qmla_client_destroy(client.client);
	free(client.memory);
	return 0;
}
