/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `qmla bench rdma`: publishes blocks to a running node and fetches them back through
 * the whole client, every page verified. What the wire itself can do is measured beside
 * it with ib_read_bw at the same message size (tests/rdma/bandwidth, docs/rdma.md).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cache_commands.h"
#include "client/cli/command.h"
#include "common/clock.h"
#include "common/digest.h"
#include "kernels/block.h"

#define PROGRAM       "qmla bench rdma"
#define PUBLISH_BATCH 16

/* A block of 1.2 MB, 64 layers, and one page by itself, 25 KB. */
static const struct shape {
	const char *name;
	qmla_layout_t layout;
	double required; /* share of ib_read_bw's rate */
} shapes[] = {
	{"block", {QMLA_FORMAT_C4R4, 64, 512, 64}, 0.90},
	{"page", {QMLA_FORMAT_C4R4, 1, 704, 64}, 0.80},
};

#define SHAPE_COUNT (sizeof(shapes) / sizeof(shapes[0]))

struct flags {
	struct qmw_target target;
	char *shape;
	uint64_t blocks, rounds, connections;
	double limit; /* MB/s, 10^6 bytes; 0: none */
	bool bytes;
};

struct run {
	const struct flags *flags;
	const struct shape *shape;
	qmla_client_t *client;
	qmla_identity_t identity;
	uint64_t block_bytes;
	size_t count;
	qmla_key_t *keys;
	uint8_t *memory; /* [count] blocks to fetch into; publishing uses the first few */
	void **blocks;   /* [count] */
};

/* What fetches of all blocks took, in sum. */
struct sample {
	double fetch_ms;
	qmla_fetch_stats_t stats;
};

static qmla_status_t make_keys(struct run *run)
{
	qmla_key_chain_t chain;
	qmla_status_t status = qmla_key_chain_start(&run->identity, "bench", &chain);

	for (size_t i = 0; i < run->count && status == QMLA_OK; i++) {
		uint32_t tokens[QMLA_BLOCK_TOKENS];

		for (uint32_t t = 0; t < QMLA_BLOCK_TOKENS; t++)
			tokens[t] = (uint32_t)i * QMLA_BLOCK_TOKENS + t;
		status = qmla_key_chain_extend(&chain, tokens, 1, &run->keys[i]);
	}
	return status;
}

/* Seals the batch's headers over the random pages that its memory holds. */
static qmla_status_t seal(struct run *run, size_t first, size_t count)
{
	const qmla_layout_t *l = &run->shape->layout;
	struct qmk_layout layout;
	qmla_status_t status = qmk_layout_init((enum qmk_format)l->format, l->layers,
					       l->content_dim, l->rope_dim, &layout);

	for (size_t i = 0; i < count && status == QMLA_OK; i++) {
		struct qmk_block_info info = {.generation = 0};

		memcpy(info.key, run->keys[first + i].bytes, sizeof(info.key));
		memcpy(info.identity, run->identity.bytes, sizeof(info.identity));
		qmk_block_seal(&layout, &info, run->blocks[i]);
	}
	return status;
}

static qmla_status_t publish(struct run *run)
{
	uint32_t timeout = qmw_target_timeout_ms(&run->flags->target);
	size_t batch = run->count < PUBLISH_BATCH ? run->count : PUBLISH_BATCH;
	qmla_status_t status = qmc_random_bytes(run->memory, batch * run->block_bytes);

	for (size_t at = 0; at < run->count && status == QMLA_OK; at += batch) {
		size_t count = run->count - at < batch ? run->count - at : batch;

		status = seal(run, at, count);
		if (status == QMLA_OK)
			status = qmla_client_publish(run->client, run->keys + at, count,
						     (const void *const *)run->blocks, timeout,
						     NULL);
	}
	if (status == QMLA_ERR_RESOURCE_EXHAUSTED)
		fprintf(stderr,
			"%s: the node has no room for %zu blocks of %llu bytes: of its --pool-size "
			"each "
			"of --max-identities gets an equal share, and one must be free; or use "
			"fewer "
			"--blocks\n",
			PROGRAM, run->count, (unsigned long long)run->block_bytes);
	return status;
}

static qmla_status_t fetch(struct run *run, struct sample *sample)
{
	qmc_time_t begin = qmc_clock_now();
	size_t prefix = 0;
	qmla_fetch_stats_t stats = {0};
	qmla_status_t *statuses = calloc(run->count, sizeof(*statuses));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (statuses)
		status = qmla_client_fetch(run->client, run->keys, run->count, run->blocks,
					   qmw_target_timeout_ms(&run->flags->target), &prefix,
					   statuses, &stats);
	sample->fetch_ms += (double)(qmc_clock_now() - begin) / 1e6;
	sample->stats.bytes += stats.bytes;
	sample->stats.lookup_us += stats.lookup_us;
	sample->stats.transfer_us += stats.transfer_us;
	sample->stats.verify_us += stats.verify_us;
	if (status == QMLA_OK && prefix != run->count) {
		status = statuses[prefix];
		fprintf(stderr, "%s: fetched %zu of %zu blocks, then: %s\n", PROGRAM, prefix,
			run->count, qmla_status_text(status));
	}
	free(statuses);
	return status;
}

static const char *transport_used(struct run *run, char name[16])
{
	qmla_node_status_t node;
	size_t count = 1;

	snprintf(name, 16, "unknown");
	if (qmla_client_status(run->client, qmw_target_timeout_ms(&run->flags->target), &node,
			       &count) == QMLA_OK &&
	    node.transport[0])
		snprintf(name, 16, "%s", node.transport);
	return name;
}

/* All figures are the mean of the rounds, as ib_read_bw's is that of its iterations. */
static bool report(struct run *run, const struct sample *sum)
{
	double rounds = (double)run->flags->rounds;
	double bytes = (double)sum->stats.bytes / rounds;
	double transfer_ms = (double)sum->stats.transfer_us / rounds / 1e3;
	double rate = bytes / (transfer_ms * 1e6); /* GB/s */
	double limit = run->flags->limit / 1e3;
	bool ok = limit <= 0 || rate >= run->shape->required * limit;
	char transport[16];

	printf("{\"case\":\"rdma\",\"shape\":\"%s\",\"transport\":\"%s\",\"block_bytes\":%llu,"
	       "\"blocks\":%zu,\"rounds\":%llu,\"connections\":%llu,"
	       "\"transfer_gbytes_per_s\":%.4f,"
	       "\"fetch_ms\":%.1f,\"lookup_ms\":%.1f,\"transfer_ms\":%.1f,\"verify_ms\":%.1f,",
	       run->shape->name, transport_used(run, transport),
	       (unsigned long long)run->block_bytes, run->count,
	       (unsigned long long)run->flags->rounds, (unsigned long long)run->flags->connections,
	       rate, sum->fetch_ms / rounds, (double)sum->stats.lookup_us / rounds / 1e3,
	       transfer_ms, (double)sum->stats.verify_us / rounds / 1e3);
	if (limit > 0)
		printf("\"limit\":\"ib_read_bw\",\"limit_gbytes_per_s\":%.4f,\"ratio\":%.3f,"
		       "\"required_ratio\":%.2f,\"limit_ms\":%.1f,",
		       limit, rate / limit, run->shape->required, bytes / (limit * 1e6));
	printf("\"ok\":%s}\n", ok ? "true" : "false");
	fflush(stdout);
	return ok;
}

static qmla_status_t measure(struct run *run, struct sample *sum)
{
	qmla_status_t status = publish(run);

	for (uint64_t i = 0; i < run->flags->rounds && status == QMLA_OK; i++)
		status = fetch(run, sum);
	return status;
}

static qmla_status_t connect_client(struct run *run)
{
	const struct qmw_target *target = &run->flags->target;
	qmla_client_config_t config = {
		.struct_size = sizeof(config),
		.nodes = qmw_target_nodes(target),
		.identity = run->identity,
		.layout = run->shape->layout,
		.transport = target->transport ? target->transport : "verbs",
		.connections = (uint32_t)run->flags->connections,
		.connect_timeout_ms = qmw_target_timeout_ms(target),
		.call_timeout_ms = qmw_target_timeout_ms(target),
		.tls_ca_file = target->tls_ca,
		.tls_certificate_file = target->tls_certificate,
		.tls_key_file = target->tls_key,
	};
	qmla_status_t status = qmla_client_create(&config, &run->client);

	if (status == QMLA_OK)
		status = qmla_client_register_memory(run->client, run->memory,
						     run->count * run->block_bytes);
	return status;
}

static qmla_status_t make_run(struct run *run)
{
	run->count = run->flags->blocks;
	run->block_bytes = qmla_layout_block_bytes(&run->shape->layout);
	run->keys = calloc(run->count, sizeof(*run->keys));
	run->blocks = calloc(run->count, sizeof(*run->blocks));
	run->memory = aligned_alloc(QMK_ALIGN, run->count * run->block_bytes);
	if (!run->keys || !run->blocks || !run->memory)
		return QMLA_ERR_NO_MEMORY;
	memset(run->memory, 0, run->count * run->block_bytes); /* pages that are there */
	for (size_t i = 0; i < run->count; i++)
		run->blocks[i] = run->memory + i * run->block_bytes;
	return qmc_random_bytes(run->identity.bytes, sizeof(run->identity.bytes));
}

static int run_shape(const struct flags *flags, const struct shape *shape)
{
	struct run run = {.flags = flags, .shape = shape};
	struct sample sum = {0};
	uint64_t removed;
	bool ok = false;
	qmla_status_t status = make_run(&run);

	if (status == QMLA_OK)
		status = make_keys(&run);
	if (status == QMLA_OK)
		status = connect_client(&run);
	if (status == QMLA_OK)
		status = measure(&run, &sum);
	if (status == QMLA_OK)
		ok = report(&run, &sum);
	else
		fprintf(stderr, "%s: %s not measured: %s\n", PROGRAM, shape->name,
			qmla_status_text(status));
	if (run.client)
		(void)qmla_client_clear(run.client, qmw_target_timeout_ms(&flags->target),
					&removed);
	qmla_client_destroy(run.client);
	free(run.keys);
	free(run.blocks);
	free(run.memory);
	return ok ? QMW_EXIT_OK : QMW_EXIT_FAILED;
}

/* For scripts that run ib_read_bw at the same sizes. */
static void print_bytes(const struct shape *shape)
{
	printf("%s %llu\n", shape->name,
	       (unsigned long long)qmla_layout_block_bytes(&shape->layout));
}

static int run_shapes(void *user, int count, char **names)
{
	const struct flags *flags = user;
	int code = QMW_EXIT_OK;
	size_t found = 0;

	(void)count;
	(void)names;
	if (flags->limit > 0 && !flags->shape) {
		fprintf(stderr, "%s: --limit is of one size: name it with --shape\n", PROGRAM);
		return QMW_EXIT_USAGE;
	}
	for (size_t i = 0; i < SHAPE_COUNT; i++) {
		if (flags->shape && strcmp(flags->shape, shapes[i].name) != 0)
			continue;
		found++;
		if (flags->bytes)
			print_bytes(&shapes[i]);
		else
			code = qmw_exit_join(code, run_shape(flags, &shapes[i]));
	}
	if (found > 0)
		return code;
	fprintf(stderr, "%s: no --shape '%s'; there are block and page\n", PROGRAM, flags->shape);
	return QMW_EXIT_USAGE;
}

int qmw_cmd_bench_rdma(int argc, char **argv)
{
	struct flags flags = {
		.target = QMW_TARGET_DEFAULT, .blocks = 512, .rounds = 3, .connections = 1};
	const struct qmc_option table[] = {
		{"shape", 's', QMC_OPTION_STRING, &flags.shape, "NAME",
		 "block (64 layers, 1.2 MB) or page (one layer, 25 KB); default both", 0, 0, false},
		{"blocks", 'b', QMC_OPTION_UNSIGNED, &flags.blocks, "N",
		 "blocks of a fetch, default 512", 1, 65536, false},
		{"rounds", 'r', QMC_OPTION_UNSIGNED, &flags.rounds, "N",
		 "fetches, whose mean counts; default 3", 1, 1000, false},
		{"connections", 'c', QMC_OPTION_UNSIGNED, &flags.connections, "N",
		 "data connections, each on a thread; default 1", 1, 64, false},
		{"limit", 0, QMC_OPTION_REAL, &flags.limit, "MB/S",
		 "what ib_read_bw reached at this size, in 10^6 bytes a second", 0, 0, false},
		{"transport", 0, QMC_OPTION_STRING, &flags.target.transport, "NAME",
		 "verbs (default), shm or tcp", 0, 0, false},
		{"print-bytes", 0, QMC_OPTION_BOOL, &flags.bytes, NULL,
		 "only print the shapes' bytes, for 'ib_read_bw -s'", 0, 0, false},
		QMW_TARGET_NODE_OPTIONS(flags.target),
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags]",
		.summary = "Fetches blocks from a running node by one thread, every page verified, "
			   "and prints\na JSON line a size. The node needs room: 512 blocks of "
			   "1.2 MB and of 25 KB\nwant --pool-size 1300MiB --max-identities 2. What "
			   "was "
			   "published is removed again.",
		.epilogue = "QMLA_RDMA_DEVICES=name[:port[:gid]] chooses this side's device.\n\n"
			    "Exit status: 0 done, 1 not done or below --limit's share (90 % for "
			    "block, 80 % for\npage), 2 wrong usage, 3 a node did not answer.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	flags.target.timeout_ns = INT64_C(120000000000);
	return qmw_command_run(&options, argc, argv, &flags.target, QMW_TARGET_NODES, run_shapes,
			       &flags);
}
