/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/cache/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "kernels/block.h"

#define must(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "fixture: line %d: %s\n", __LINE__, #condition);           \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

static void fill_pages(struct fixture *fixture, size_t index)
{
	uint64_t word = 0x9e3779b97f4a7c15u * (index + 1);
	uint8_t *block = fixture->written[index];

	for (uint64_t at = fixture->bytes.header_bytes; at < fixture->bytes.block_bytes; at++) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		block[at] = (uint8_t)(word >> 56);
	}
}

static void make_blocks(struct fixture *fixture)
{
	size_t block = fixture->bytes.block_bytes;
	uint32_t tokens[64 * FIXTURE_BLOCKS];

	for (uint32_t i = 0; i < 64 * FIXTURE_BLOCKS; i++)
		tokens[i] = 17 * i + 3;
	must(qmla_keys_compute(&fixture->identity, "test", tokens, 64 * FIXTURE_BLOCKS,
			       fixture->keys) == QMLA_OK);
	fixture->memory = aligned_alloc(128, 2 * block * FIXTURE_BLOCKS);
	must(fixture->memory);
	memset(fixture->memory, 0xee, 2 * block * FIXTURE_BLOCKS);
	for (size_t i = 0; i < FIXTURE_BLOCKS; i++) {
		struct qmk_block_info info = {.generation = 0};

		fixture->written[i] = fixture->memory + 2 * i * block;
		fixture->read[i] = fixture->written[i] + block;
		memcpy(info.key, fixture->keys[i].bytes, sizeof(info.key));
		memcpy(info.identity, fixture->identity.bytes, sizeof(info.identity));
		fill_pages(fixture, i);
		qmk_block_seal(&fixture->bytes, &info, fixture->written[i]);
	}
}

void fixture_reopen(struct fixture *fixture)
{
	qmla_client_destroy(fixture->client);
	fixture->client = NULL;
	must(qmla_client_create(&fixture->config, &fixture->client) == QMLA_OK);
}

struct fixture *fixture_create(size_t nodes)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	size_t used = 0;

	must(fixture);
	fixture->layout = (qmla_layout_t){QMLA_FORMAT_C4R4, 2, 128, 32};
	must(qmk_layout_init(QMK_FORMAT_C4R4, 2, 128, 32, &fixture->bytes) == QMLA_OK);
	memset(fixture->identity.bytes, 0x1d, sizeof(fixture->identity.bytes));
	make_blocks(fixture);
	fixture->node_count = nodes;
	for (size_t i = 0; i < nodes; i++) {
		fixture->nodes[i] = fake_node_start(&fixture->layout, 0);
		/* Named, so that placement does not depend on the port. */
		used += (size_t)snprintf(fixture->node_list + used,
					 sizeof(fixture->node_list) - used, "n%zu=%s,", i,
					 fixture->nodes[i]->address);
	}
	fixture->config = (qmla_client_config_t){
		.struct_size = sizeof(fixture->config),
		.nodes = fixture->node_list,
		.identity = fixture->identity,
		.layout = fixture->layout,
		.transport = "tcp",
		.connect_timeout_ms = 1000,
		.call_timeout_ms = 500,
		.probe_interval_ms = 100,
	};
	fixture_reopen(fixture);
	return fixture;
}

void fixture_destroy(struct fixture *fixture)
{
	qmla_client_destroy(fixture->client);
	for (size_t i = 0; i < fixture->node_count; i++)
		fake_node_stop(fixture->nodes[i]);
	free(fixture->memory);
	free(fixture);
}

void fixture_publish(struct fixture *fixture, size_t count)
{
	qmla_status_t statuses[FIXTURE_BLOCKS];
	qmla_status_t status =
		qmla_client_publish(fixture->client, fixture->keys, count,
				    (const void *const *)fixture->written, 5000, statuses);

	must(status == QMLA_OK);
	for (size_t i = 0; i < count; i++)
		must(statuses[i] == QMLA_OK);
}

/* The bytes of the pages are those written; the header differs by the generation. */
static bool same_block(const struct fixture *fixture, size_t index)
{
	size_t header = fixture->bytes.header_bytes;

	return memcmp(fixture->read[index] + header, fixture->written[index] + header,
		      fixture->bytes.block_bytes - header) == 0;
}

size_t fixture_fetch(struct fixture *fixture, size_t count, uint32_t timeout_ms,
		     qmla_status_t *statuses, qmla_fetch_stats_t *stats)
{
	size_t prefix = SIZE_MAX;

	for (size_t i = 0; i < count; i++)
		memset(fixture->read[i], 0xee, fixture->bytes.block_bytes);
	must(qmla_client_fetch(fixture->client, fixture->keys, count, (void *const *)fixture->read,
			       timeout_ms, &prefix, statuses, stats) == QMLA_OK);
	must(prefix <= count);
	for (size_t i = 0; i < prefix; i++)
		must(same_block(fixture, i));
	return prefix;
}

int fixture_holder(struct fixture *fixture, size_t index)
{
	for (size_t n = 0; n < fixture->node_count; n++) {
		if (fixture->nodes[n] && fake_node_has(fixture->nodes[n], &fixture->keys[index]))
			return (int)n;
	}
	return -1;
}

bool fixture_reaches(_Atomic uint32_t *value, uint32_t least)
{
	for (int i = 0; i < 400 && atomic_load(value) < least; i++)
		qmc_clock_sleep_until(qmc_clock_after(5 * QMC_NS_PER_MS));
	return atomic_load(value) >= least;
}
