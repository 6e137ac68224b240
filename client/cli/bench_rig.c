/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/bench_cases.h"
#include "common/digest.h"
#include "kernels/block.h"

#define PUBLISH_MS 60000

static qmla_status_t make_keys(struct qmw_bench_rig *rig, const qmla_identity_t *identity)
{
	qmla_key_chain_t chain;
	qmla_status_t status = qmla_key_chain_start(identity, "bench", &chain);

	for (size_t i = 0; i < rig->count && status == QMLA_OK; i++) {
		uint32_t tokens[QMLA_BLOCK_TOKENS];

		for (uint32_t t = 0; t < QMLA_BLOCK_TOKENS; t++)
			tokens[t] = (uint32_t)i * QMLA_BLOCK_TOKENS + t;
		status = qmla_key_chain_extend(&chain, tokens, 1, &rig->keys[i]);
	}
	return status;
}

/* Every block has the same random pages: the bytes matter to nobody but the checksums. */
static qmla_status_t make_blocks(struct qmw_bench_rig *rig, const qmla_layout_t *layout,
				 const qmla_identity_t *identity)
{
	struct qmk_layout bytes;
	qmla_status_t status = qmk_layout_init((enum qmk_format)layout->format, layout->layers,
					       layout->content_dim, layout->rope_dim, &bytes);

	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < rig->count && status == QMLA_OK; i++) {
		struct qmk_block_info info = {.generation = 0};
		uint8_t *block = rig->memory + i * rig->block_bytes;

		rig->blocks[i] = block;
		if (i == 0)
			status = qmc_random_bytes(block, rig->block_bytes);
		else
			memcpy(block, rig->memory, rig->block_bytes);
		memcpy(info.key, rig->keys[i].bytes, sizeof(info.key));
		memcpy(info.identity, identity->bytes, sizeof(info.identity));
		qmk_block_seal(&bytes, &info, block);
	}
	return status;
}

static qmla_status_t connect_client(struct qmw_bench_rig *rig, const struct qmw_bench_plan *plan,
				    const qmla_identity_t *identity)
{
	qmla_client_config_t config = {
		.struct_size = sizeof(config),
		.nodes = rig->node.address,
		.identity = *identity,
		.layout = plan->layout,
		.transport = plan->transport,
		.connections = plan->connections,
	};
	qmla_status_t status = qmla_client_create(&config, &rig->client);

	if (status == QMLA_OK)
		status = qmla_client_publish(rig->client, rig->keys, rig->count,
					     (const void *const *)rig->blocks, PUBLISH_MS, NULL);
	return status;
}

qmla_status_t qmw_bench_rig_start(struct qmw_bench_rig *rig, const struct qmw_bench_plan *plan)
{
	const char *arguments[] = {"--pool-size", plan->pool, "--max-identities", "1", NULL};
	qmla_identity_t identity;
	qmla_status_t status = qmc_random_bytes(identity.bytes, sizeof(identity.bytes));

	memset(rig, 0, sizeof(*rig));
	rig->count = plan->count;
	rig->block_bytes = qmla_layout_block_bytes(&plan->layout);
	rig->keys = calloc(rig->count, sizeof(*rig->keys));
	rig->blocks = calloc(rig->count, sizeof(*rig->blocks));
	rig->memory = aligned_alloc(QMK_ALIGN, rig->count * rig->block_bytes);
	if (!rig->keys || !rig->blocks || !rig->memory)
		status = QMLA_ERR_NO_MEMORY;
	/* The child first: nothing may be forked once gRPC runs. */
	if (status == QMLA_OK)
		status = qmw_spawn("qmla-node", arguments, &rig->node);
	if (status == QMLA_OK)
		status = make_keys(rig, &identity);
	if (status == QMLA_OK)
		status = make_blocks(rig, &plan->layout, &identity);
	if (status == QMLA_OK)
		status = connect_client(rig, plan, &identity);
	if (status != QMLA_OK) {
		fprintf(stderr, "qmla bench: no node to measure: %s\n", qmla_status_text(status));
		qmw_bench_rig_end(rig);
	}
	return status;
}

void qmw_bench_rig_end(struct qmw_bench_rig *rig)
{
	qmla_client_destroy(rig->client);
	qmw_spawn_end(&rig->node);
	free(rig->keys);
	free(rig->blocks);
	free(rig->memory);
	memset(rig, 0, sizeof(*rig));
}
