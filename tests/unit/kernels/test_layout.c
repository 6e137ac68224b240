/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/layout.h"

static struct qmk_layout layout_of(enum qmk_format format, uint32_t layers, uint32_t content,
				   uint32_t rope)
{
	struct qmk_layout layout;

	assert_int_equal(qmk_layout_init(format, layers, content, rope, &layout), QMLA_OK);
	return layout;
}

/* The figures that the record was designed for. */
static void test_bytes_at_512_64(void **state)
{
	struct qmk_layout c4r4 = layout_of(QMK_FORMAT_C4R4, 3, 512, 64);
	struct qmk_layout c2r4 = layout_of(QMK_FORMAT_C2R4, 3, 512, 64);
	struct qmk_layout paper = layout_of(QMK_FORMAT_PAPER_C4R4, 3, 512, 64);

	(void)state;
	assert_int_equal(c4r4.page_bytes, 146 * 128);
	assert_int_equal(c2r4.page_bytes, 82 * 128);
	assert_int_equal(paper.page_bytes, 20480);
	assert_true(qmk_layout_token_bytes(&c4r4) == 292);
	assert_true(qmk_layout_token_bytes(&c2r4) == 164);
	assert_true(qmk_layout_token_bytes(&paper) == 320);
	assert_int_equal(paper.record_bytes, 32);
	assert_int_equal(c4r4.header_bytes, 128);
	assert_int_equal(c4r4.block_bytes, 128 + 3 * 18688);
	assert_false(c4r4.rope_rotated);
	assert_true(paper.rope_rotated);
}

static void check_planes(const struct qmk_layout *layout)
{
	assert_int_equal(layout->page_bytes % QMK_ALIGN, 0);
	assert_int_equal(layout->header_bytes % QMK_ALIGN, 0);
	assert_true(layout->header_bytes >= 96 + 8 * layout->layers);
	assert_true(layout->header_bytes < 96 + 8 * layout->layers + QMK_ALIGN);
	assert_int_equal(layout->block_bytes,
			 layout->header_bytes + (uint64_t)layout->layers * layout->page_bytes);
	assert_int_equal(layout->rope_codes_offset, 64 * layout->content_row_bytes);
	assert_int_equal(layout->content_scales_offset,
			 layout->rope_codes_offset + 64 * layout->rope_row_bytes);
	assert_true(layout->content_row_bytes % 16 == 0 && layout->rope_row_bytes % 16 == 0);
	assert_int_equal(qmk_layout_page_offset(layout, layout->layers), layout->block_bytes);
	/* A reader finds any layout's header whole inside a block of any other. */
	assert_true(layout->block_bytes >= 96 + 8 * QMK_MAX_LAYERS + QMK_ALIGN);
}

static void test_every_geometry(void **state)
{
	static const uint32_t ropes[] = {32, 64, 128};

	(void)state;
	for (int format = QMK_FORMAT_C4R4; format <= QMK_FORMAT_PAPER_C4R4; format++) {
		for (uint32_t content = 64; content <= QMK_MAX_CONTENT_DIM; content += 64) {
			for (unsigned r = 0; r < 3; r++) {
				struct qmk_layout layout =
					layout_of((enum qmk_format)format, 1 + content % 7, content,
						  ropes[r]);

				check_planes(&layout);
			}
		}
	}
}

static void refuse(int format, uint32_t layers, uint32_t content, uint32_t rope)
{
	struct qmk_layout layout;

	memset(&layout, 0x5a, sizeof(layout));
	assert_int_equal(qmk_layout_init((enum qmk_format)format, layers, content, rope, &layout),
			 QMLA_ERR_INVALID_ARGUMENT);
	/* Outputs are written on success only. */
	for (size_t i = 0; i < sizeof(layout); i++)
		assert_int_equal(((unsigned char *)&layout)[i], 0x5a);
}

static void test_impossible_geometry(void **state)
{
	(void)state;
	refuse(0, 3, 512, 64);
	refuse(4, 3, 512, 64);
	refuse(-1, 3, 512, 64);
	refuse(QMK_FORMAT_C4R4, 0, 512, 64);
	refuse(QMK_FORMAT_C4R4, 257, 512, 64);
	refuse(QMK_FORMAT_C4R4, UINT32_MAX, 512, 64);
	refuse(QMK_FORMAT_C4R4, 3, 0, 64);
	refuse(QMK_FORMAT_C4R4, 3, 32, 64);
	refuse(QMK_FORMAT_C4R4, 3, 500, 64);
	refuse(QMK_FORMAT_C4R4, 3, 1088, 64);
	refuse(QMK_FORMAT_C4R4, 3, 512, 0);
	refuse(QMK_FORMAT_C4R4, 3, 512, 16);
	refuse(QMK_FORMAT_C4R4, 3, 512, 96);
	refuse(QMK_FORMAT_C4R4, 3, 512, 256);
}

static void test_names(void **state)
{
	static const char *const names[] = {"c4r4", "c2r4", "paper-c4r4"};
	enum qmk_format format;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(qmk_format_parse(names[i], &format), QMLA_OK);
		assert_int_equal(format, i + 1);
		assert_string_equal(qmk_format_name(format), names[i]);
	}
	assert_int_equal(qmk_format_parse("C4R4", &format), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmk_format_parse("", &format), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmk_format_parse(NULL, &format), QMLA_ERR_INVALID_ARGUMENT);
	assert_string_equal(qmk_format_name((enum qmk_format)9), "unknown");
}

/* Every field that changes bytes changes the fingerprint, and it never changes by itself. */
static void test_fingerprint(void **state)
{
	struct qmk_layout layouts[] = {
		layout_of(QMK_FORMAT_C4R4, 3, 512, 64),
		layout_of(QMK_FORMAT_C2R4, 3, 512, 64),
		layout_of(QMK_FORMAT_C4R4, 4, 512, 64),
		layout_of(QMK_FORMAT_C4R4, 3, 576, 64),
		layout_of(QMK_FORMAT_C4R4, 3, 512, 32),
		layout_of(QMK_FORMAT_PAPER_C4R4, 3, 512, 64),
	};

	(void)state;
	/* printf qmla-layout-v1:c4r4:3:512:64:64 | sha256sum, first eight bytes reversed */
	assert_int_equal(qmk_layout_fingerprint(&layouts[0]), 0x334bd8870b7cfd46u);
	for (unsigned i = 0; i < 6; i++)
		for (unsigned j = 0; j < i; j++)
			assert_true(qmk_layout_fingerprint(&layouts[i]) !=
				    qmk_layout_fingerprint(&layouts[j]));
}

/* Within a row the chunk permutation is one, and eight tokens in a row differ as far as they can.
 */
static void test_chunk_permutation(void **state)
{
	(void)state;
	for (uint32_t chunks = 1; chunks <= 64; chunks++) {
		for (uint32_t t = 0; t < 64; t++) {
			uint64_t seen = 0;

			for (uint32_t c = 0; c < chunks; c++) {
				uint32_t place = qmk_layout_chunk(c, t, chunks);

				assert_true(place < chunks);
				seen |= 1ull << place;
			}
			assert_int_equal(seen, chunks == 64 ? UINT64_MAX : (1ull << chunks) - 1);
		}
	}
	/* t = 1, 2, 4 flip bits 2, 1, 0 of the chunk in a row of 16. */
	assert_int_equal(qmk_layout_chunk(0, 1, 16), 4);
	assert_int_equal(qmk_layout_chunk(0, 2, 16), 2);
	assert_int_equal(qmk_layout_chunk(0, 4, 16), 1);
	assert_int_equal(qmk_layout_chunk(9, 8 + 7, 16), 9 ^ 7);
	/* A RoPE row of two chunks turns by bit 2 of the token only. */
	assert_int_equal(qmk_layout_chunk(1, 3, 2), 1);
	assert_int_equal(qmk_layout_chunk(1, 4, 2), 0);
}

static void check_account(enum qmk_format format, uint32_t layers, double least)
{
	struct qmk_layout layout = layout_of(format, layers, 512, 64);
	struct qmk_account account;

	qmk_layout_account(&layout, 131072, &account);
	assert_int_equal(account.blocks, 2048);
	assert_int_equal(account.page_bytes, 2048ull * layers * layout.page_bytes);
	assert_int_equal(account.header_bytes, 2048ull * layout.header_bytes);
	assert_int_equal(account.tail_bytes, 64ull * 1152 * layers);
	assert_int_equal(account.total_bytes,
			 account.page_bytes + account.header_bytes + account.tail_bytes);
	assert_int_equal(account.bf16_bytes, 131072ull * 1152 * layers);
	assert_true(account.compression >= least);
	assert_true(account.token_layer_bytes * account.compression > 1151.999 &&
		    account.token_layer_bytes * account.compression < 1152.001);
}

static void test_account_at_128k(void **state)
{
	static const uint32_t layers[] = {3, 4, 27, 61};
	struct qmk_layout layout = layout_of(QMK_FORMAT_C4R4, 3, 512, 64);
	struct qmk_account account;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		check_account(QMK_FORMAT_C4R4, layers[i], 3.9);
		check_account(QMK_FORMAT_C2R4, layers[i], 6.9);
	}
	/* Only the tail's room, before a block is full. */
	qmk_layout_account(&layout, 63, &account);
	assert_int_equal(account.blocks, 0);
	assert_int_equal(account.total_bytes, 64 * 1152 * 3);
	qmk_layout_account(&layout, 0, &account);
	assert_true(account.compression == 0 && account.token_layer_bytes == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_at_512_64),
		cmocka_unit_test(test_every_geometry),
		cmocka_unit_test(test_impossible_geometry),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_fingerprint),
		cmocka_unit_test(test_chunk_permutation),
		cmocka_unit_test(test_account_at_128k),
	};

	return cmocka_run_group_tests_name("kernels/layout", tests, NULL, NULL);
}
