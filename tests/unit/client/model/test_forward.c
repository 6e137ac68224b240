/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache rule: whatever the chunks, the batch, the threads and whoever computed
 * the prefix, a token's logits and a block's bytes are the same, bit by bit.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/internal.h"
#include "client/model/numeric.h"
#include "client/model/runner.h"
#include "tests/unit/client/model/fixture.h"

#define TINY   FIXTURE_GOLDEN "v3-bf16-half-bias"
#define TOKENS 200u /* three full blocks and a tail of 8 */
#define BLOCKS (TOKENS / QMK_PAGE_TOKENS)

struct rig {
	struct qmw_model *model;
	struct qmw_context *context;
	struct qmk_pool pool;
	uint32_t slots; /* taken so far */
	uint32_t vocab;
};

static uint32_t tokens[4096];

static void rig_open(struct rig *rig, const char *directory,
		     const struct qmw_model_options *options, uint32_t max_tokens)
{
	*rig = (struct rig){0};
	assert_int_equal(qmw_model_open(directory, options, &rig->model), QMLA_OK);
	assert_int_equal(qmw_context_create(rig->model, max_tokens, &rig->context), QMLA_OK);
	rig->pool.stride = qmw_model_layout(rig->model)->block_bytes;
	rig->pool.base = aligned_alloc(QMK_ALIGN, 64 * rig->pool.stride);
	assert_non_null(rig->pool.base);
	memset(rig->pool.base, 0, 64 * rig->pool.stride);
	rig->vocab = qmw_model_info(rig->model)->vocab;
}

static void rig_close(struct rig *rig)
{
	free(rig->pool.base);
	qmw_context_destroy(rig->context);
	qmw_model_close(rig->model);
}

/* A sequence with slots of its own. */
static struct qmw_sequence *rig_sequence(struct rig *rig, uint32_t max_tokens)
{
	struct qmw_sequence *sequence;
	uint32_t capacity, *slots;

	assert_int_equal(qmw_sequence_create(rig->model, max_tokens, &sequence), QMLA_OK);
	slots = qmw_sequence_slots(sequence, &capacity);
	assert_int_equal(capacity, max_tokens / QMK_PAGE_TOKENS);
	for (uint32_t i = 0; i < capacity; i++)
		slots[i] = rig->slots++;
	assert_true(rig->slots <= 64);
	return sequence;
}

static void feed(struct rig *rig, struct qmw_sequence *sequence, uint32_t count, float *logits)
{
	uint32_t at = qmw_sequence_length(sequence);
	struct qmw_forward_item item = {.sequence = sequence,
					.tokens = tokens + at,
					.count = count,
					.all_logits = true,
					.logits = logits ? logits + (size_t)at * rig->vocab : NULL};

	assert_int_equal(qmw_model_forward(rig->model, rig->context, &rig->pool, &item, 1),
			 QMLA_OK);
	assert_int_equal(qmw_sequence_length(sequence), at + count);
}

static const void *block_at(const struct rig *rig, uint32_t slot)
{
	return (const char *)rig->pool.base + slot * rig->pool.stride;
}

static void assert_same_blocks(struct rig *rig, struct qmw_sequence *a, struct qmw_sequence *b)
{
	uint32_t capacity;
	const uint32_t *x = qmw_sequence_slots(a, &capacity), *y = qmw_sequence_slots(b, &capacity);

	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_memory_equal(block_at(rig, x[i]), block_at(rig, y[i]), rig->pool.stride);
}

static float *new_logits(const struct rig *rig)
{
	float *logits = calloc((size_t)TOKENS * rig->vocab, sizeof(*logits));

	assert_non_null(logits);
	return logits;
}

static void assert_same_logits(const struct rig *rig, const float *a, const float *b, uint32_t from)
{
	for (uint32_t i = from; i < TOKENS; i++)
		if (memcmp(a + (size_t)i * rig->vocab, b + (size_t)i * rig->vocab,
			   rig->vocab * sizeof(*a)) != 0)
			fail_msg("the logits of token %u differ", i);
}

/* In one call; in random chunks; token by token; after adopting each prefix. */
static void check_chunking(struct rig *rig)
{
	struct qmw_sequence *whole = rig_sequence(rig, TOKENS);
	float *expected = new_logits(rig), *logits = new_logits(rig);
	uint64_t seed = 1;

	feed(rig, whole, TOKENS, expected);
	for (int round = 0; round < 4; round++) {
		struct qmw_sequence *sequence = rig_sequence(rig, TOKENS);
		uint32_t left = TOKENS;

		while (left > 0) {
			uint32_t most = round == 3 ? 1 : round == 2 ? 7 : 150;
			uint32_t count =
				1 + (uint32_t)((fixture_random(&seed) + 1) / 2 * (float)most);

			count = count < left ? count : left;
			feed(rig, sequence, round == 3 ? 1 : count, logits);
			left -= round == 3 ? 1 : count;
		}
		assert_same_logits(rig, expected, logits, 0);
		assert_same_blocks(rig, whole, sequence);
		qmw_sequence_destroy(sequence);
		memset(logits, 0, (size_t)TOKENS * rig->vocab * sizeof(*logits));
	}
	qmw_sequence_destroy(whole);
	free(expected);
	free(logits);
}

static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_C2R4, QMK_FORMAT_PAPER_C4R4};

static void test_chunking_packed(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		const struct qmw_model_options options = {.format = formats[i]};
		struct rig rig;

		rig_open(&rig, i == 0 ? FIXTURE_MLA_S : TINY, &options, TOKENS);
		check_chunking(&rig);
		rig_close(&rig);
	}
}

static void test_chunking_bf16(void **state)
{
	const struct qmw_model_options options = {.cache = QMW_CACHE_BF16};
	struct rig rig;

	(void)state;
	rig_open(&rig, TINY, &options, TOKENS);
	check_chunking(&rig);
	rig_close(&rig);
}

/* Experts take the rows of a call together; a row must not notice. One of each family. */
static void test_chunking_families(void **state)
{
	static const char *const directories[] = {
		FIXTURE_GOLDEN "v2-moe-groups-f32", FIXTURE_GOLDEN "v3-moe-groups-f32",
		FIXTURE_GOLDEN "glm-moe-bf16",      FIXTURE_GOLDEN "longcat-f32",
		FIXTURE_GOLDEN "minicpm3-bf16",     FIXTURE_GOLDEN "v3-moe-fp8",
		FIXTURE_GOLDEN "longcat-lite-bf16"};
	const struct qmw_model_options options = {.threads = 3};

	(void)state;
	for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++) {
		struct rig rig;

		rig_open(&rig, directories[i], &options, TOKENS);
		check_chunking(&rig);
		rig_close(&rig);
	}
}

/* More rows than experts take at once: four texts in one call, against each alone. */
static void check_bands(const char *directory, uint32_t threads)
{
	const struct qmw_model_options options = {.threads = threads};
	struct qmw_forward_item items[4];
	float *expected, *logits;
	struct rig rig;

	rig_open(&rig, directory, &options, 4 * TOKENS);
	expected = calloc((size_t)4 * rig.vocab, sizeof(*expected));
	logits = calloc((size_t)4 * rig.vocab, sizeof(*logits));
	for (uint32_t i = 0; i < 4; i++) {
		items[i] = (struct qmw_forward_item){.sequence = rig_sequence(&rig, TOKENS),
						     .tokens = tokens + 100 * i,
						     .count = TOKENS - i,
						     .logits = expected + i * rig.vocab};
		assert_int_equal(qmw_model_forward(rig.model, rig.context, &rig.pool, &items[i], 1),
				 QMLA_OK);
		qmw_sequence_destroy(items[i].sequence);
		items[i].sequence = rig_sequence(&rig, TOKENS);
		items[i].logits = logits + i * rig.vocab;
	}
	assert_int_equal(qmw_model_forward(rig.model, rig.context, &rig.pool, items, 4), QMLA_OK);
	assert_memory_equal(expected, logits, (size_t)4 * rig.vocab * sizeof(*logits));
	for (int i = 0; i < 4; i++)
		qmw_sequence_destroy(items[i].sequence);
	free(expected);
	free(logits);
	rig_close(&rig);
}

static void test_bands(void **state)
{
	(void)state;
	check_bands(FIXTURE_GOLDEN "v3-moe-groups-f32", 1);
	check_bands(FIXTURE_GOLDEN "longcat-f32", 3);
}

/* A prefix that someone else computed: the rest comes out the same. */
static void test_adopted_prefix(void **state)
{
	const struct qmw_model_options options = {0};
	float *expected, *logits;
	struct qmw_sequence *whole;
	struct rig rig;

	(void)state;
	rig_open(&rig, FIXTURE_MLA_S, &options, TOKENS);
	expected = new_logits(&rig);
	logits = new_logits(&rig);
	whole = rig_sequence(&rig, TOKENS);
	feed(&rig, whole, TOKENS, expected);
	for (uint32_t blocks = 1; blocks <= BLOCKS; blocks++) {
		struct qmw_sequence *sequence = rig_sequence(&rig, TOKENS);
		uint32_t capacity, *to = qmw_sequence_slots(sequence, &capacity);
		const uint32_t *from = qmw_sequence_slots(whole, &capacity);

		for (uint32_t i = 0; i < blocks; i++)
			memcpy((char *)rig.pool.base + to[i] * rig.pool.stride,
			       block_at(&rig, from[i]), rig.pool.stride);
		assert_int_equal(qmw_sequence_adopt(sequence, blocks), QMLA_OK);
		assert_int_equal(qmw_sequence_length(sequence), blocks * QMK_PAGE_TOKENS);
		feed(&rig, sequence, TOKENS - blocks * QMK_PAGE_TOKENS, logits);
		assert_same_logits(&rig, expected, logits, blocks * QMK_PAGE_TOKENS);
		assert_same_blocks(&rig, whole, sequence);
		qmw_sequence_destroy(sequence);
	}
	qmw_sequence_destroy(whole);
	free(expected);
	free(logits);
	rig_close(&rig);
}

/* Embeddings that read earlier tokens: who adopts a prefix must say what it was. */
static void test_adopted_history(void **state)
{
	const struct qmw_model_options options = {0};
	struct qmw_sequence *whole, *sequence;
	float *expected, *logits;
	struct rig rig;
	uint32_t capacity;

	(void)state;
	rig_open(&rig, FIXTURE_GOLDEN "longcat-lite-bf16", &options, TOKENS);
	assert_int_equal(qmw_model_info(rig.model)->history, 2);
	expected = new_logits(&rig);
	logits = new_logits(&rig);
	whole = rig_sequence(&rig, TOKENS);
	sequence = rig_sequence(&rig, TOKENS);
	feed(&rig, whole, TOKENS, expected);
	memcpy((char *)rig.pool.base + qmw_sequence_slots(sequence, &capacity)[0] * rig.pool.stride,
	       block_at(&rig, qmw_sequence_slots(whole, &capacity)[0]), rig.pool.stride);
	assert_int_equal(qmw_sequence_adopt(sequence, 1), QMLA_OK);
	assert_int_equal(qmw_model_forward(rig.model, rig.context, &rig.pool,
					   &(struct qmw_forward_item){.sequence = sequence,
								      .tokens = tokens + 64,
								      .count = 1},
					   1),
			 QMLA_ERR_INVALID_ARGUMENT);
	qmw_sequence_remember(sequence, tokens, 63);
	qmw_sequence_remember(sequence, tokens + 63, 1);
	feed(&rig, sequence, 1, logits);
	feed(&rig, sequence, 1, logits);
	feed(&rig, sequence, TOKENS - 66, logits);
	assert_same_logits(&rig, expected, logits, 64);
	qmw_sequence_destroy(whole);
	qmw_sequence_destroy(sequence);
	free(expected);
	free(logits);
	rig_close(&rig);
}

/* The prefix really comes from the pages: other pages, other logits. */
static void test_pages_are_read(void **state)
{
	const struct qmw_model_options options = {0};
	float *expected, *logits;
	struct qmw_sequence *whole, *sequence;
	struct rig rig;
	uint32_t capacity;

	(void)state;
	rig_open(&rig, FIXTURE_MLA_S, &options, TOKENS);
	expected = new_logits(&rig);
	logits = new_logits(&rig);
	whole = rig_sequence(&rig, TOKENS);
	sequence = rig_sequence(&rig, TOKENS);
	feed(&rig, whole, TOKENS, expected);
	qmw_sequence_slots(sequence, &capacity)[0] = qmw_sequence_slots(whole, &capacity)[1];
	assert_int_equal(qmw_sequence_adopt(sequence, 1), QMLA_OK);
	feed(&rig, sequence, 1, logits);
	assert_memory_not_equal(expected + 64 * (size_t)rig.vocab, logits + 64 * (size_t)rig.vocab,
				rig.vocab * sizeof(*logits));
	qmw_sequence_destroy(sequence);
	qmw_sequence_destroy(whole);
	free(expected);
	free(logits);
	rig_close(&rig);
}

/* The first block sees no page, so its logits are those of the BF16 cache; later ones differ. */
static void test_first_block_is_bf16(void **state)
{
	const struct qmw_model_options packed = {0}, bf16 = {.cache = QMW_CACHE_BF16};
	float *a, *b;
	struct qmw_sequence *x, *y;
	struct rig p, q;
	uint32_t same = 0;

	(void)state;
	rig_open(&p, FIXTURE_MLA_S, &packed, TOKENS);
	rig_open(&q, FIXTURE_MLA_S, &bf16, TOKENS);
	a = new_logits(&p);
	b = new_logits(&q);
	x = rig_sequence(&p, TOKENS);
	y = rig_sequence(&q, TOKENS);
	feed(&p, x, TOKENS, a);
	feed(&q, y, TOKENS, b);
	assert_memory_equal(a, b, (size_t)64 * p.vocab * sizeof(*a));
	assert_memory_not_equal(a + (size_t)64 * p.vocab, b + (size_t)64 * p.vocab,
				p.vocab * sizeof(*a));
	for (uint32_t i = 0; i < TOKENS; i++)
		same += qmw_argmax(a + (size_t)i * p.vocab, p.vocab) ==
			qmw_argmax(b + (size_t)i * p.vocab, p.vocab);
	assert_true(same >= TOKENS * 95 / 100);
	qmw_sequence_destroy(x);
	qmw_sequence_destroy(y);
	free(a);
	free(b);
	rig_close(&p);
	rig_close(&q);
}

/* Several requests of different lengths in one call, twice, against each alone. */
static void test_batch(void **state)
{
	static const uint32_t counts[2][4] = {{1, 64, 130, 33}, {1, 70, 1, 128}};
	const struct qmw_model_options options = {.threads = 3};
	struct qmw_sequence *alone[4], *together[4];
	float *expected, *logits;
	struct rig rig;

	(void)state;
	rig_open(&rig, FIXTURE_MLA_S, &options, 256);
	expected = calloc((size_t)4 * rig.vocab, sizeof(*expected));
	logits = calloc((size_t)4 * rig.vocab, sizeof(*logits));
	for (int i = 0; i < 4; i++) {
		alone[i] = rig_sequence(&rig, 320);
		together[i] = rig_sequence(&rig, 320);
	}
	for (int call = 0; call < 2; call++) {
		struct qmw_forward_item items[4];

		for (uint32_t i = 0; i < 4; i++) {
			items[i] = (struct qmw_forward_item){
				.sequence = alone[i],
				.tokens = tokens + 100 * i + qmw_sequence_length(alone[i]),
				.count = counts[call][i],
				.logits = expected + i * rig.vocab};
			assert_int_equal(
				qmw_model_forward(rig.model, rig.context, &rig.pool, &items[i], 1),
				QMLA_OK);
			items[i].sequence = together[i];
			items[i].logits = logits + i * rig.vocab;
		}
		assert_int_equal(qmw_model_forward(rig.model, rig.context, &rig.pool, items, 4),
				 QMLA_OK);
		assert_memory_equal(expected, logits, (size_t)4 * rig.vocab * sizeof(*logits));
	}
	for (int i = 0; i < 4; i++) {
		qmw_sequence_destroy(alone[i]);
		qmw_sequence_destroy(together[i]);
	}
	free(expected);
	free(logits);
	rig_close(&rig);
}

/* Runs tokens[at …) in chunks; @logits of the last. */
static void read_on(struct rig *rig, struct qmw_sequence *sequence, uint32_t end, uint32_t chunk,
		    float *logits)
{
	uint32_t at = qmw_sequence_length(sequence);

	while (at < end) {
		struct qmw_forward_item item = {.sequence = sequence,
						.tokens = tokens + at,
						.count = at + chunk < end ? chunk : end - at,
						.logits = logits};

		assert_int_equal(qmw_model_forward(rig->model, rig->context, &rig->pool, &item, 1),
				 QMLA_OK);
		at += item.count;
	}
}

/*
 * A past so long that it is attended in parts: in chunks by three threads, in one
 * piece by one, and token by token behind an adopted prefix.
 */
static void test_long_past(void **state)
{
	const uint32_t length = 2200, blocks = 34;
	float expected[256] = {0}, chunked[256] = {0}, adopted[256] = {0};
	char directory[256];

	(void)state;
	fixture_make(directory);
	fixture_copy(FIXTURE_GOLDEN "v3-f32-rope32-yarn", directory);
	fixture_replace(directory, "config.json", "\"max_position_embeddings\": 512",
			"\"max_position_embeddings\": 4096");
	for (uint32_t threads = 1; threads <= 3; threads += 2) {
		const struct qmw_model_options options = {.threads = threads};
		struct qmw_sequence *whole, *sequence;
		uint32_t capacity, *slots;
		struct rig rig;

		rig_open(&rig, directory, &options, length);
		whole = rig_sequence(&rig, 2300);
		read_on(&rig, whole, length, threads == 1 ? length : 900,
			threads == 1 ? expected : chunked);
		assert_int_equal(qmw_sequence_create(rig.model, 2300, &sequence), QMLA_OK);
		slots = qmw_sequence_slots(sequence, &capacity);
		memcpy(slots, qmw_sequence_slots(whole, &capacity), capacity * sizeof(*slots));
		assert_int_equal(qmw_sequence_adopt(sequence, blocks), QMLA_OK);
		read_on(&rig, sequence, length - 3, 64, NULL);
		read_on(&rig, sequence, length, 1, adopted);
		assert_memory_equal(expected, adopted, sizeof(expected));
		qmw_sequence_destroy(sequence);
		qmw_sequence_destroy(whole);
		rig_close(&rig);
	}
	assert_memory_equal(expected, chunked, sizeof(expected));
	fixture_remove(directory);
}

static void test_threads(void **state)
{
	float *expected = NULL;

	(void)state;
	for (uint32_t threads = 1; threads <= 4; threads++) {
		const struct qmw_model_options options = {.threads = threads};
		struct qmw_sequence *sequence;
		struct rig rig;
		float *logits;

		rig_open(&rig, FIXTURE_MLA_S, &options, TOKENS);
		logits = new_logits(&rig);
		sequence = rig_sequence(&rig, TOKENS);
		feed(&rig, sequence, TOKENS - 2, logits);
		feed(&rig, sequence, 1, logits);
		feed(&rig, sequence, 1, logits);
		if (expected)
			assert_same_logits(&rig, expected, logits, 0);
		else
			expected = logits;
		if (logits != expected)
			free(logits);
		qmw_sequence_destroy(sequence);
		rig_close(&rig);
	}
	free(expected);
}

static qmla_status_t try_forward(struct rig *rig, const struct qmk_pool *pool,
				 struct qmw_sequence *sequence, const uint32_t *ids, uint32_t count)
{
	struct qmw_forward_item item = {.sequence = sequence, .tokens = ids, .count = count};

	return qmw_model_forward(rig->model, rig->context, pool, &item, 1);
}

static void test_refused_calls(void **state)
{
	const struct qmw_model_options options = {0};
	struct qmw_sequence *sequence, *other;
	uint32_t bad[3] = {1, 256, 2}, capacity;
	struct qmw_forward_item twice[2];
	struct qmk_pool small;
	struct rig rig;

	(void)state;
	rig_open(&rig, FIXTURE_MLA_S, &options, 128);
	sequence = rig_sequence(&rig, 100);
	small = rig.pool;
	small.stride -= 128;
	assert_int_equal(try_forward(&rig, &rig.pool, sequence, bad, 3), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(try_forward(&rig, &rig.pool, sequence, tokens, 0),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(try_forward(&rig, &rig.pool, sequence, tokens, 101),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(try_forward(&rig, &rig.pool, NULL, tokens, 1), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(try_forward(&rig, NULL, sequence, tokens, 64), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(try_forward(&rig, &small, sequence, tokens, 64),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_model_forward(rig.model, rig.context, &rig.pool, NULL, 0),
			 QMLA_ERR_INVALID_ARGUMENT);
	twice[0] = twice[1] =
		(struct qmw_forward_item){.sequence = sequence, .tokens = tokens, .count = 1};
	assert_int_equal(qmw_model_forward(rig.model, rig.context, &rig.pool, twice, 2),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_sequence_create(rig.model, 512, &other), QMLA_OK);
	assert_int_equal(try_forward(&rig, &rig.pool, other, tokens, 64),
			 QMLA_ERR_INVALID_ARGUMENT); /* no slot yet */
	assert_int_equal(try_forward(&rig, &rig.pool, other, tokens, 129),
			 QMLA_ERR_INVALID_ARGUMENT); /* over the context */
	assert_int_equal(qmw_sequence_adopt(other, 9), QMLA_ERR_INVALID_ARGUMENT);
	qmw_sequence_slots(other, &capacity)[0] = 60;
	assert_int_equal(try_forward(&rig, &rig.pool, other, tokens, 64), QMLA_OK);
	assert_int_equal(qmw_sequence_adopt(other, 1), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_sequence_length(sequence), 0);
	assert_int_equal(qmw_sequence_create(rig.model, 0, &other), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_sequence_create(rig.model, 32769, &other), QMLA_ERR_INVALID_ARGUMENT);
	qmw_sequence_destroy(other);
	qmw_sequence_destroy(sequence);
	rig_close(&rig);
}

/* A refused call, with a good item before the bad one, leaves no trace. */
static void test_refused_call_changes_nothing(void **state)
{
	const struct qmw_model_options options = {0};
	float *expected, *logits;
	struct qmw_sequence *a, *b, *bad;
	const uint32_t wrong = 256;
	struct rig rig;

	(void)state;
	rig_open(&rig, FIXTURE_MLA_S, &options, TOKENS);
	expected = new_logits(&rig);
	logits = new_logits(&rig);
	a = rig_sequence(&rig, TOKENS);
	b = rig_sequence(&rig, TOKENS);
	bad = rig_sequence(&rig, TOKENS);
	feed(&rig, a, TOKENS, expected);
	for (uint32_t at = 0; at < TOKENS; at += 50) {
		struct qmw_forward_item items[2] = {
			{.sequence = b, .tokens = tokens + at, .count = 50},
			{.sequence = bad, .tokens = &wrong, .count = 1}};

		assert_int_equal(qmw_model_forward(rig.model, rig.context, &rig.pool, items, 2),
				 QMLA_ERR_INVALID_ARGUMENT);
		assert_int_equal(qmw_sequence_length(b), at);
		feed(&rig, b, 50, logits);
	}
	assert_same_logits(&rig, expected, logits, 0);
	qmw_sequence_destroy(a);
	qmw_sequence_destroy(b);
	qmw_sequence_destroy(bad);
	free(expected);
	free(logits);
	rig_close(&rig);
}

static struct qmk_ops failing;
static int calls_left;

static qmla_status_t fail_late_pack(const struct qmk_pack_args *args)
{
	return calls_left-- > 0 ? qmk_cpu_ops.pack(args) : QMLA_ERR_INTERNAL;
}

static qmla_status_t fail_late_attend(const struct qmk_attend_args *args)
{
	return calls_left-- > 0 ? qmk_cpu_ops.attend(args) : QMLA_ERR_INTERNAL;
}

/* A kernel that fails in the middle of a call: the call is repeated as if nothing had been. */
static void test_failed_call_changes_nothing(void **state)
{
	const struct qmw_model_options options = {.threads = 1};
	float *expected, *logits;
	struct qmw_sequence *a, *b;
	struct rig rig;

	(void)state;
	rig_open(&rig, TINY, &options, TOKENS);
	expected = new_logits(&rig);
	logits = new_logits(&rig);
	a = rig_sequence(&rig, TOKENS);
	b = rig_sequence(&rig, TOKENS);
	feed(&rig, a, TOKENS, expected);
	for (uint32_t at = 0; at < TOKENS; at += 40) {
		struct qmw_forward_item item = {
			.sequence = b, .tokens = tokens + at, .count = 40, .logits = logits};

		for (int what = 0; what < 4; what++) {
			failing = qmk_cpu_ops;
			failing.pack = what % 2 ? fail_late_pack : qmk_cpu_ops.pack;
			failing.attend = what % 2 ? qmk_cpu_ops.attend : fail_late_attend;
			calls_left = what / 2; /* in the first or in a later layer or span */
			if (what % 2 && at / 64 == (at + 40) / 64)
				continue; /* fills no block */
			rig.model->ops = &failing;
			assert_int_equal(
				qmw_model_forward(rig.model, rig.context, &rig.pool, &item, 1),
				QMLA_ERR_INTERNAL);
			rig.model->ops = &qmk_cpu_ops;
			assert_int_equal(qmw_sequence_length(b), at);
		}
		feed(&rig, b, 40, logits);
	}
	assert_same_logits(&rig, expected, logits, 0);
	assert_same_blocks(&rig, a, b);
	qmw_sequence_destroy(a);
	qmw_sequence_destroy(b);
	free(expected);
	free(logits);
	rig_close(&rig);
}

struct caller {
	const struct qmw_model *model;
	float *logits;
	qmla_status_t status;
};

static void *read_alone(void *argument)
{
	struct caller *caller = argument;
	struct qmw_runner *runner;
	const float *logits;

	caller->status = qmw_runner_create(caller->model, TOKENS, &runner);
	if (caller->status)
		return NULL;
	for (uint32_t at = 0; at < TOKENS && !caller->status; at += 25) {
		caller->status = qmw_runner_feed(runner, tokens + at, 25, &logits);
		if (!caller->status)
			memcpy(caller->logits + (size_t)at * 256, logits,
			       (size_t)25 * 256 * sizeof(*logits));
	}
	qmw_runner_destroy(runner);
	return NULL;
}

/* One model, three threads with contexts of their own. */
static void test_concurrent_callers(void **state)
{
	const struct qmw_model_options options = {.threads = 2};
	struct caller callers[3];
	pthread_t threads[3];
	struct rig rig;

	(void)state;
	rig_open(&rig, TINY, &options, TOKENS);
	for (int i = 0; i < 3; i++) {
		callers[i] = (struct caller){.model = rig.model, .logits = new_logits(&rig)};
		assert_int_equal(pthread_create(&threads[i], NULL, read_alone, &callers[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(callers[i].status, QMLA_OK);
		assert_same_logits(&rig, callers[0].logits, callers[i].logits, 0);
	}
	for (int i = 0; i < 3; i++)
		free(callers[i].logits);
	rig_close(&rig);
}

static int read_text(void **state)
{
	size_t length;
	char *text = fixture_read(QMLA_SOURCE_DIR "/tests/data/prompts", "golden.txt", &length);

	(void)state;
	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
		tokens[i] = (uint8_t)text[i];
	free(text);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunking_packed),
		cmocka_unit_test(test_chunking_bf16),
		cmocka_unit_test(test_chunking_families),
		cmocka_unit_test(test_bands),
		cmocka_unit_test(test_adopted_prefix),
		cmocka_unit_test(test_adopted_history),
		cmocka_unit_test(test_pages_are_read),
		cmocka_unit_test(test_first_block_is_bf16),
		cmocka_unit_test(test_batch),
		cmocka_unit_test(test_threads),
		cmocka_unit_test(test_long_past),
		cmocka_unit_test(test_refused_calls),
		cmocka_unit_test(test_refused_call_changes_nothing),
		cmocka_unit_test(test_failed_call_changes_nothing),
		cmocka_unit_test(test_concurrent_callers),
	};

	return cmocka_run_group_tests(tests, read_text, NULL);
}
