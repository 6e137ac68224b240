/* SPDX-License-Identifier: Apache-2.0 */
/* Append of decode tokens to BF16 tails, and the pages of tails that fill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "reference.h"

#define CONTENT 128u
#define ROPE    32u
#define WIDTH   (CONTENT + ROPE)
#define LAYER   1u
#define SLOTS   3u

/* Three requests' tails and a pool of three blocks. */
struct rig {
	struct qmk_layout layout;
	struct qmk_constants constants;
	float mean[WIDTH];
	uint16_t *rows[SLOTS];
	struct qmk_tail tails[SLOTS];
	float *content, *rope;
	uint8_t *pool;
	struct qmk_append_args args;
};

static void rig_init(struct rig *rig, enum qmk_format format, uint32_t tokens)
{
	struct ref_random random = {41};

	memset(rig, 0, sizeof(*rig));
	assert_int_equal(qmk_layout_init(format, 3, CONTENT, ROPE, &rig->layout), QMLA_OK);
	for (uint32_t i = 0; i < WIDTH; i++)
		rig->mean[i] = (float)ref_random_normal(&random);
	rig->constants.content_mean = rig->mean;
	rig->constants.rope_mean = rig->mean + CONTENT;
	rig->content = ref_alloc(tokens * CONTENT * sizeof(float), 0);
	rig->rope = ref_alloc(tokens * ROPE * sizeof(float), 0);
	for (uint32_t i = 0; i < tokens * CONTENT; i++)
		rig->content[i] = (float)ref_random_normal(&random);
	for (uint32_t i = 0; i < tokens * ROPE; i++)
		rig->rope[i] = (float)ref_random_normal(&random);
	rig->pool = ref_alloc(SLOTS * rig->layout.block_bytes, 0x5a);
	for (uint32_t r = 0; r < SLOTS; r++) {
		rig->rows[r] = ref_alloc(64 * WIDTH * sizeof(uint16_t), 0x11);
		rig->tails[r] = (struct qmk_tail){.rows = rig->rows[r], .slot = SLOTS - 1 - r};
	}
	rig->args = (struct qmk_append_args){.layout = &rig->layout,
					     .constants = &rig->constants,
					     .pool = {rig->pool, rig->layout.block_bytes},
					     .layer = LAYER,
					     .requests = SLOTS,
					     .tails = rig->tails,
					     .content = rig->content,
					     .rope = rig->rope,
					     .content_stride = CONTENT,
					     .rope_stride = ROPE,
					     .dtype = QMK_F32};
	rig->args.workspace = ref_alloc(qmk_cpu_ops.append_workspace(&rig->args), 0xff);
}

static void rig_fini(struct rig *rig)
{
	ref_free(rig->content);
	ref_free(rig->rope);
	ref_free(rig->pool);
	ref_free(rig->args.workspace);
	for (uint32_t r = 0; r < SLOTS; r++)
		ref_free(rig->rows[r]);
}

/* What a tail's row must hold for input row @p n: BF16 of the value less the mean. */
static void expected_row(const struct rig *rig, uint32_t n, uint16_t *out)
{
	const bool paper = rig->layout.format == QMK_FORMAT_PAPER_C4R4;

	for (uint32_t i = 0; i < WIDTH; i++) {
		float value = i < CONTENT ? rig->content[n * CONTENT + i]
					  : rig->rope[n * ROPE + i - CONTENT];

		out[i] = ref_to_bfloat((double)(paper ? value : value - rig->mean[i]));
	}
}

static void assert_row(const struct rig *rig, const uint16_t *row, uint32_t n)
{
	uint16_t want[WIDTH];

	expected_row(rig, n, want);
	assert_memory_equal(row, want, sizeof(want));
}

static const uint8_t *page_at(const struct rig *rig, uint32_t slot)
{
	return rig->pool + slot * rig->layout.block_bytes +
	       qmk_layout_page_offset(&rig->layout, LAYER);
}

/* The page of @p slot holds input rows first … first + 63 to within its quantiser's step. */
static void assert_page(const struct rig *rig, uint32_t slot, uint32_t first)
{
	double content[CONTENT], rope[ROPE], miss = 0, norm = 0;

	for (uint32_t t = 0; t < 64; t++) {
		uint16_t row[WIDTH];

		expected_row(rig, first + t, row);
		ref_page_token(&rig->layout, page_at(rig, slot), t, content, rope);
		for (uint32_t i = 0; i < WIDTH; i++) {
			double want = ref_bfloat(row[i]);
			double got = i < CONTENT ? content[i] : rope[i - CONTENT];

			miss += (got - want) * (got - want);
			norm += want * want;
		}
	}
	/* Four bits leave about a hundredth of the energy; another token's page all of it. */
	assert_true(miss < 0.03 * norm);
}

static void assert_untouched(const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		assert_int_equal(bytes[i], 0x5a);
}

static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_PAPER_C4R4};

static void test_rows_are_stored_and_nothing_is_packed_early(void **state)
{
	(void)state;
	for (size_t f = 0; f < 2; f++) {
		struct rig rig;

		rig_init(&rig, formats[f], 8);
		rig.tails[0].filled = 0, rig.tails[0].tokens = 1, rig.tails[0].row = 3;
		rig.tails[1].filled = 59, rig.tails[1].tokens = 4, rig.tails[1].row = 4;
		rig.tails[2].filled = 63, rig.tails[2].tokens = 0;
		assert_int_equal(qmk_cpu_ops.append(&rig.args), QMLA_OK);
		assert_row(&rig, rig.rows[0], 3);
		for (uint32_t i = 0; i < 4; i++)
			assert_row(&rig, rig.rows[1] + (59 + i) * WIDTH, 4 + i);
		assert_int_equal(rig.rows[0][WIDTH], 0x1111);
		assert_int_equal(rig.rows[1][59 * WIDTH - 1], 0x1111);
		assert_int_equal(rig.rows[1][63 * WIDTH], 0x1111);
		assert_int_equal(rig.rows[2][63 * WIDTH], 0x1111);
		assert_untouched(rig.pool, SLOTS * rig.layout.block_bytes);
		rig_fini(&rig);
	}
}

/* 65 tokens in steps of 1, 2 and 3: the page is packed at the 64th, the rest begins anew. */
static void test_a_tail_that_fills_becomes_a_page(void **state)
{
	(void)state;
	for (size_t f = 0; f < 2; f++) {
		struct rig rig;

		rig_init(&rig, formats[f], 3 * 72);
		for (uint32_t step = 0; step < 66; step++) {
			for (uint32_t r = 0; r < SLOTS; r++) {
				struct qmk_tail *tail = &rig.tails[r];
				uint32_t done = step * (r + 1);

				tail->tokens = done < 66 ? r + 1 : 0;
				tail->row = 72 * r + (done < 66 ? done : 0);
			}
			assert_int_equal(qmk_cpu_ops.append(&rig.args), QMLA_OK);
			for (uint32_t r = 0; r < SLOTS; r++)
				rig.tails[r].filled =
					(rig.tails[r].filled + rig.tails[r].tokens) % 64;
		}
		for (uint32_t r = 0; r < SLOTS; r++) {
			assert_int_equal(rig.tails[r].filled, 2);
			assert_page(&rig, SLOTS - 1 - r, 72 * r);
			assert_row(&rig, rig.rows[r], 72 * r + 64);
			assert_row(&rig, rig.rows[r] + WIDTH, 72 * r + 65);
		}
		/* Other layers' pages and the headers are someone else's. */
		for (uint32_t s = 0; s < SLOTS; s++) {
			const uint8_t *block = rig.pool + s * rig.layout.block_bytes;
			const size_t before = qmk_layout_page_offset(&rig.layout, LAYER);
			const size_t after = before + rig.layout.page_bytes;

			assert_untouched(block, before);
			assert_untouched(block + after, rig.layout.block_bytes - after);
		}
		rig_fini(&rig);
	}
}

static void test_bad_arguments_are_refused(void **state)
{
	struct rig rig;
	struct qmk_append_args args;

	(void)state;
	rig_init(&rig, QMK_FORMAT_C4R4, 1);
	assert_int_equal(qmk_cpu_ops.append(NULL), QMLA_ERR_INVALID_ARGUMENT);
	args = rig.args, args.tails = NULL;
	assert_int_equal(qmk_cpu_ops.append(&args), QMLA_ERR_INVALID_ARGUMENT);
	args = rig.args, args.layer = 3;
	assert_int_equal(qmk_cpu_ops.append(&args), QMLA_ERR_INVALID_ARGUMENT);
	args = rig.args, args.workspace = NULL;
	assert_int_equal(qmk_cpu_ops.append(&args), QMLA_ERR_INVALID_ARGUMENT);
	args = rig.args, args.rope_stride = ROPE - 1;
	assert_int_equal(qmk_cpu_ops.append(&args), QMLA_ERR_INVALID_ARGUMENT);
	rig.tails[1].filled = 64;
	assert_int_equal(qmk_cpu_ops.append(&rig.args), QMLA_ERR_INVALID_ARGUMENT);
	rig.tails[1].filled = 0, rig.tails[1].tokens = 65;
	assert_int_equal(qmk_cpu_ops.append(&rig.args), QMLA_ERR_INVALID_ARGUMENT);
	args = rig.args, args.requests = 0;
	assert_int_equal(qmk_cpu_ops.append(&args), QMLA_OK);
	rig_fini(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_are_stored_and_nothing_is_packed_early),
		cmocka_unit_test(test_a_tail_that_fills_becomes_a_page),
		cmocka_unit_test(test_bad_arguments_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
