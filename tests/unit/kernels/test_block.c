/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "kernels/block.h"
#include "kernels/cpu/dispatch.h"
#include "reference.h"

static const struct qmk_block_info info = {
	.key = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
	.identity = {9, 8, 7, 6, 5, 4, 3, 2, 1},
	.generation = 77,
};

static struct qmk_layout layout;

static uint8_t *sealed_block(void)
{
	struct ref_random random = {5};
	uint8_t *block;

	assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, 5, 64, 32, &layout), QMLA_OK);
	block = ref_alloc(layout.block_bytes, 0xee);
	for (uint64_t i = layout.header_bytes; i < layout.block_bytes; i++)
		block[i] = (uint8_t)ref_random_next(&random);
	qmk_block_seal(&layout, &info, block);
	return block;
}

/* Checksum and fields again, as a writer with other ideas would make them. */
static void reseal(uint8_t *block)
{
	uint64_t sum;

	memset(block + 88, 0, 8);
	sum = XXH64(block, layout.header_bytes, 0);
	memcpy(block + 88, &sum, 8);
}

static void test_sealed_block_passes(void **state)
{
	uint8_t *block = sealed_block();
	struct qmk_block_info any = info;

	(void)state;
	assert_int_equal(qmk_block_check_header(&layout, &info, block), QMLA_OK);
	assert_int_equal(qmk_block_check(&layout, &info, block), QMLA_OK);
	any.generation = 0;
	assert_int_equal(qmk_block_check(&layout, &any, block), QMLA_OK);
	ref_free(block);
}

static void test_byte_map(void **state)
{
	static const uint8_t start[16] = {'Q', 'M', 'L', 'A', 'B', 'L', 'K', '\n', 1, 0, 1, 0, 5};
	uint8_t *block = sealed_block();
	uint64_t value;

	(void)state;
	assert_memory_equal(block, start, 16);
	assert_memory_equal(block + 16, info.key, 16);
	assert_memory_equal(block + 32, info.identity, 32);
	memcpy(&value, block + 64, 8);
	assert_int_equal(value, 77);
	memcpy(&value, block + 72, 8);
	assert_int_equal(value, 64); /* tokens, and flags of zero above them */
	memcpy(&value, block + 80, 8);
	assert_int_equal(value, qmk_layout_fingerprint(&layout));
	for (uint32_t i = 0; i < layout.layers; i++) {
		memcpy(&value, block + 96 + 8 * i, 8);
		assert_int_equal(value,
				 qmk_page_checksum(block + qmk_layout_page_offset(&layout, i),
						   layout.page_bytes));
	}
	for (uint32_t i = 96 + 8 * layout.layers; i < layout.header_bytes; i++)
		assert_int_equal(block[i], 0);
	assert_int_equal(qmk_block_digest(&layout, block), XXH64(block + 96, 40, 0));
	ref_free(block);
}

/* Every bit of header and pages is covered by a checksum. */
static void test_each_flipped_bit_is_found(void **state)
{
	uint8_t *block = sealed_block();
	struct ref_random random = {6};

	(void)state;
	for (uint32_t i = 0; i < layout.header_bytes; i++) {
		for (unsigned bit = 0; bit < 8; bit++) {
			block[i] ^= (uint8_t)(1u << bit);
			assert_int_equal(qmk_block_check_header(&layout, &info, block),
					 QMLA_ERR_CORRUPT);
			block[i] ^= (uint8_t)(1u << bit);
		}
	}
	for (uint32_t layer = 0; layer < layout.layers; layer++) {
		uint8_t *page = block + qmk_layout_page_offset(&layout, layer);
		const uint32_t planes[] = {0, layout.rope_codes_offset,
					   layout.content_scales_offset, layout.rope_scales_offset,
					   layout.page_bytes};

		for (unsigned p = 0; p < 4; p++) {
			for (unsigned n = 0; n < 8; n++) {
				uint32_t at = planes[p] +
					      ref_random_below(&random, planes[p + 1] - planes[p]);

				page[at] ^= (uint8_t)(1u << n);
				assert_int_equal(qmk_block_check_header(&layout, &info, block),
						 QMLA_OK);
				assert_int_equal(qmk_block_check(&layout, &info, block),
						 QMLA_ERR_CORRUPT);
				page[at] ^= (uint8_t)(1u << n);
			}
		}
	}
	assert_int_equal(qmk_block_check(&layout, &info, block), QMLA_OK);
	ref_free(block);
}

/* Headers whose own checksum is right, but that say what no header may say. */
static void test_impossible_fields(void **state)
{
	static const struct {
		unsigned at, bytes;
		uint32_t value;
	} faults[] = {
		{0, 1, 'q'}, {8, 2, 0},   {8, 2, 2},    {10, 2, 0},
		{10, 2, 4},  {12, 4, 0},  {12, 4, 257}, {12, 4, UINT32_MAX},
		{72, 4, 63}, {72, 4, 65}, {76, 4, 1},   {76, 4, 0x80000000u},
	};
	uint8_t *good = sealed_block(), *block = ref_alloc(layout.block_bytes, 0);

	(void)state;
	for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		memcpy(block, good, layout.block_bytes);
		memcpy(block + faults[i].at, &faults[i].value, faults[i].bytes);
		reseal(block);
		assert_int_equal(qmk_block_check_header(&layout, &info, block), QMLA_ERR_CORRUPT);
	}
	memset(block, 0, layout.block_bytes); /* a slot that was never written */
	assert_int_equal(qmk_block_check_header(&layout, &info, block), QMLA_ERR_CORRUPT);
	ref_free(good);
	ref_free(block);
}

static void test_other_layouts_block(void **state)
{
	uint8_t *block = sealed_block();
	struct qmk_layout other;
	static const struct {
		enum qmk_format format;
		uint32_t layers, content, rope;
	} others[] = {
		{QMK_FORMAT_C4R4, 1, 64, 32},  {QMK_FORMAT_C4R4, 256, 64, 32},
		{QMK_FORMAT_C2R4, 5, 64, 32},  {QMK_FORMAT_C4R4, 5, 128, 32},
		{QMK_FORMAT_C4R4, 5, 64, 128}, {QMK_FORMAT_PAPER_C4R4, 5, 64, 32},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		assert_int_equal(qmk_layout_init(others[i].format, others[i].layers,
						 others[i].content, others[i].rope, &other),
				 QMLA_OK);
		/* Ours read by a reader of another layout, and the other way round. */
		if (other.block_bytes <= layout.block_bytes)
			assert_int_equal(qmk_block_check_header(&other, &info, block),
					 QMLA_ERR_LAYOUT_MISMATCH);
		{
			uint8_t *foreign = ref_alloc(other.block_bytes, 0);

			qmk_block_seal(&other, &info, foreign);
			assert_int_equal(qmk_block_check(&other, &info, foreign), QMLA_OK);
			assert_int_equal(qmk_block_check_header(&layout, &info, foreign),
					 QMLA_ERR_LAYOUT_MISMATCH);
			ref_free(foreign);
		}
	}
	ref_free(block);
}

static void test_each_status(void **state)
{
	uint8_t *block = sealed_block();
	struct qmk_block_info wrong = info;

	(void)state;
	wrong.identity[31] ^= 1;
	assert_int_equal(qmk_block_check_header(&layout, &wrong, block),
			 QMLA_ERR_IDENTITY_MISMATCH);
	wrong = info;
	wrong.key[15] ^= 0x80;
	assert_int_equal(qmk_block_check_header(&layout, &wrong, block), QMLA_ERR_STALE);
	wrong.generation = 0;
	assert_int_equal(qmk_block_check_header(&layout, &wrong, block), QMLA_ERR_STALE);
	wrong = info;
	wrong.generation = 78;
	assert_int_equal(qmk_block_check_header(&layout, &wrong, block), QMLA_ERR_STALE);
	assert_int_equal(qmk_block_check(&layout, &wrong, block), QMLA_ERR_STALE);
	ref_free(block);
}

static void test_set_generation(void **state)
{
	uint8_t *block = sealed_block(), *copy = ref_alloc(layout.block_bytes, 0);
	struct qmk_block_info next = info;

	(void)state;
	memcpy(copy, block, layout.block_bytes);
	next.generation = UINT64_MAX;
	qmk_block_set_generation(&layout, UINT64_MAX, block);
	assert_int_equal(qmk_block_check(&layout, &next, block), QMLA_OK);
	assert_int_equal(qmk_block_check(&layout, &info, block), QMLA_ERR_STALE);
	/* Nothing but the two fields changed. */
	assert_memory_equal(copy, block, 64);
	assert_memory_equal(copy + 72, block + 72, 16);
	assert_memory_equal(copy + 96, block + 96, layout.block_bytes - 96);
	assert_int_equal(qmk_block_digest(&layout, copy), qmk_block_digest(&layout, block));
	qmk_block_set_generation(&layout, info.generation, block);
	assert_memory_equal(copy, block, layout.block_bytes);
	ref_free(block);
	ref_free(copy);
}

static void test_seal_with_given_checksums(void **state)
{
	uint8_t *block = sealed_block(), *copy = ref_alloc(layout.block_bytes, 0);
	uint32_t slots[] = {1, 0};
	uint64_t sums[10];
	uint8_t *pool = ref_alloc(2 * layout.block_bytes, 0);
	struct qmk_checksum_args args = {
		.layout = &layout,
		.pool = {pool, layout.block_bytes},
		.blocks = 2,
		.slots = slots,
		.checksums = sums,
	};

	(void)state;
	assert_int_equal(layout.block_bytes % 128, 0);
	memcpy(pool + layout.block_bytes, block, layout.block_bytes);
	assert_int_equal(qmk_cpu_ops.checksum(&args), QMLA_OK);
	memcpy(copy, block, layout.block_bytes);
	memset(copy, 0x77, layout.header_bytes);
	qmk_block_seal_with(&layout, &info, sums, copy);
	assert_memory_equal(copy, block, layout.block_bytes);
	args.slots = NULL;
	assert_int_equal(qmk_cpu_ops.checksum(&args), QMLA_ERR_INVALID_ARGUMENT);
	ref_free(block);
	ref_free(copy);
	ref_free(pool);
}

/* The tree as its definition says, chunk by chunk, for sizes around the batch of eight. */
static void test_page_checksum_tree(void **state)
{
	struct ref_random random = {8};
	uint8_t *page = ref_alloc(64 * 128, 0);
	uint64_t digests[64];

	(void)state;
	for (unsigned i = 0; i < 64 * 128; i++)
		page[i] = (uint8_t)ref_random_next(&random);
	for (unsigned chunks = 0; chunks <= 64; chunks++) {
		uint64_t wanted;
		const struct qmk_cpu_table *table;

		for (unsigned c = 0; c < chunks; c++)
			digests[c] = XXH64(page + 128 * c, 128, c);
		wanted = XXH64(digests, 8 * chunks, 0);
		assert_int_equal(qmk_page_checksum(page, 128 * chunks), wanted);
		for (unsigned i = 0; (table = qmk_cpu_variant(i)); i++)
			assert_int_equal(table->page_checksum(page, 128 * chunks), wanted);
	}
	ref_free(page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sealed_block_passes),
		cmocka_unit_test(test_byte_map),
		cmocka_unit_test(test_each_flipped_bit_is_found),
		cmocka_unit_test(test_impossible_fields),
		cmocka_unit_test(test_other_layouts_block),
		cmocka_unit_test(test_each_status),
		cmocka_unit_test(test_set_generation),
		cmocka_unit_test(test_seal_with_given_checksums),
		cmocka_unit_test(test_page_checksum_tree),
	};

	return cmocka_run_group_tests_name("kernels/block", tests, NULL, NULL);
}
