/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "kernels/block.h"

#define must(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			printf("rig: line %d: %s\n", __LINE__, #condition);                        \
			fflush(stdout);                                                            \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#define FLAGS_MAX 24

bool rig_available(void)
{
	const char *path = QMLA_BINARY_DIR "/bin/qmla-node";

	if (access(path, X_OK) == 0)
		return true;
	printf("skipped: %s is not built\n", path);
	return false;
}

static void start_node(struct rig *rig, size_t index, const char *listen,
		       const struct rig_plan *plan)
{
	const char *flags[FLAGS_MAX];
	char name[16];
	size_t used = 0;

	snprintf(name, sizeof(name), "node%zu", index);
	flags[used++] = "--pool-size";
	flags[used++] = plan->pool ? plan->pool : "64MiB";
	flags[used++] = "--max-identities";
	flags[used++] = "1";
	flags[used++] = "--data-listen";
	flags[used++] = "127.0.0.1:0";
	flags[used++] = "--http-listen";
	flags[used++] = "none";
	for (size_t i = 0; plan->flags && plan->flags[i]; i++)
		flags[used++] = plan->flags[i];
	must(used < FLAGS_MAX);
	flags[used] = NULL;
	rig->nodes[index] = cluster_start(&rig->cluster, name, listen, "qmla-node", flags);
	must(rig->nodes[index]);
}

static void make_blocks(struct rig *rig)
{
	size_t block = rig->bytes.block_bytes, header = rig->bytes.header_bytes;
	uint32_t *tokens = calloc(64 * rig->count, sizeof(*tokens));
	uint64_t word = 0x243f6a8885a308d3u;

	rig->keys = calloc(rig->count, sizeof(*rig->keys));
	rig->written = calloc(rig->count, sizeof(void *));
	rig->read = calloc(rig->count, sizeof(void *));
	rig->memory = aligned_alloc(128, 2 * rig->count * block);
	must(tokens && rig->keys && rig->written && rig->read && rig->memory);
	for (uint32_t i = 0; i < 64 * rig->count; i++)
		tokens[i] = i * 3 + 1;
	must(qmla_keys_compute(&rig->identity, "rig", tokens, 64 * rig->count, rig->keys) ==
	     QMLA_OK);
	free(tokens);
	for (size_t i = 0; i < rig->count; i++) {
		struct qmk_block_info info = {.generation = 0};
		uint8_t *bytes = rig->memory + 2 * i * block;

		rig->written[i] = bytes;
		rig->read[i] = bytes + block;
		for (size_t at = header; at + 8 <= block; at += 8) {
			word = word * 6364136223846793005u + 1442695040888963407u;
			memcpy(bytes + at, &word, 8);
		}
		memcpy(info.key, rig->keys[i].bytes, sizeof(info.key));
		memcpy(info.identity, rig->identity.bytes, sizeof(info.identity));
		qmk_block_seal(&rig->bytes, &info, bytes);
	}
}

qmla_client_t *rig_client(struct rig *rig)
{
	qmla_client_t *client;

	must(qmla_client_create(&rig->config, &client) == QMLA_OK);
	return client;
}

struct rig *rig_create(const struct rig_plan *plan)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	size_t used = 0;

	must(rig);
	rig->node_count = plan->nodes ? plan->nodes : 1;
	rig->count = plan->blocks ? plan->blocks : 32;
	rig->layout = (qmla_layout_t){QMLA_FORMAT_C4R4, plan->layers ? plan->layers : 2, 512, 64};
	must(qmk_layout_init(QMK_FORMAT_C4R4, rig->layout.layers, 512, 64, &rig->bytes) == QMLA_OK);
	memset(rig->identity.bytes, 0x71, sizeof(rig->identity.bytes));
	make_blocks(rig);
	snprintf(rig->cluster.folder, sizeof(rig->cluster.folder), "/tmp/qmla-cache-XXXXXX");
	must(mkdtemp(rig->cluster.folder));
	for (size_t i = 0; i < rig->node_count; i++) {
		start_node(rig, i, NULL, plan);
		used += (size_t)snprintf(rig->node_list + used, sizeof(rig->node_list) - used,
					 "n%zu=%s,", i, rig->nodes[i]->address);
	}
	rig->config = (qmla_client_config_t){
		.struct_size = sizeof(rig->config),
		.nodes = rig->node_list,
		.identity = rig->identity,
		.layout = rig->layout,
		.transport = plan->transport,
		.replicas = plan->replicas,
		.lease_ms = plan->lease_ms,
		.connections = plan->connections,
		.call_timeout_ms = 1000,
		.probe_interval_ms = 200,
	};
	rig->client = rig_client(rig);
	return rig;
}

void rig_destroy(struct rig *rig)
{
	qmla_client_destroy(rig->client);
	cluster_close(&rig->cluster, false);
	free(rig->keys);
	free(rig->written);
	free(rig->read);
	free(rig->memory);
	free(rig);
}

void rig_restart(struct rig *rig, size_t index)
{
	const struct rig_plan plan = {0};
	char listen[64];

	snprintf(listen, sizeof(listen), "%s", rig->nodes[index]->address);
	start_node(rig, index, listen, &plan);
}

void rig_publish(struct rig *rig, size_t count)
{
	qmla_status_t *statuses = calloc(count, sizeof(*statuses));

	must(statuses);
	must(qmla_client_publish(rig->client, rig->keys, count, (const void *const *)rig->written,
				 20000, statuses) == QMLA_OK);
	for (size_t i = 0; i < count; i++)
		must(statuses[i] == QMLA_OK || statuses[i] == QMLA_ERR_ALREADY_EXISTS);
	free(statuses);
}

static bool is_what_was_written(const struct rig *rig, size_t index)
{
	size_t header = rig->bytes.header_bytes;

	return memcmp((uint8_t *)rig->read[index] + header, (uint8_t *)rig->written[index] + header,
		      rig->bytes.block_bytes - header) == 0;
}

size_t rig_fetch(struct rig *rig, size_t count, uint32_t timeout_ms, qmla_status_t *statuses,
		 qmla_fetch_stats_t *stats)
{
	size_t prefix = SIZE_MAX;

	for (size_t i = 0; i < count; i++)
		memset(rig->read[i], 0xee, rig->bytes.block_bytes);
	must(qmla_client_fetch(rig->client, rig->keys, count, rig->read, timeout_ms, &prefix,
			       statuses, stats) == QMLA_OK);
	must(prefix <= count);
	for (size_t i = 0; i < prefix; i++)
		must(is_what_was_written(rig, i));
	return prefix;
}

bool rig_fetch_reaches(struct rig *rig, size_t count)
{
	qmc_time_t end = qmc_clock_after(10 * QMC_NS_PER_S);

	while (qmc_clock_now() < end) {
		if (rig_fetch(rig, count, 2000, NULL, NULL) == count)
			return true;
		qmc_clock_sleep_until(qmc_clock_after(50 * QMC_NS_PER_MS));
	}
	return false;
}

uint64_t rig_blocks(struct rig *rig)
{
	qmla_node_status_t nodes[RIG_NODES];
	size_t count = RIG_NODES;
	uint64_t blocks = 0;

	must(qmla_client_status(rig->client, 2000, nodes, &count) == QMLA_OK);
	for (size_t i = 0; i < count; i++)
		blocks += nodes[i].status == QMLA_OK ? nodes[i].blocks : 0;
	return blocks;
}
