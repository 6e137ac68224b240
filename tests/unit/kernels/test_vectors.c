/* SPDX-License-Identifier: Apache-2.0 */
/* The files of tests/data/format, which make_vectors.py writes from docs/format.md alone. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/digest.h"
#include "kernels/block.h"
#include "reference.h"

static json_t *load(const char *name, const char *array)
{
	char path[1024];
	json_error_t error;
	json_t *root, *list;

	snprintf(path, sizeof(path), "%s/format/%s", QMLA_TEST_DATA, name);
	root = json_load_file(path, 0, &error);
	if (!root)
		fail_msg("%s: %s", path, error.text);
	list = json_incref(json_object_get(root, array));
	json_decref(root);
	assert_true(json_array_size(list) > 0);
	return list;
}

static uint32_t number(const json_t *object, const char *name)
{
	json_t *value = json_object_get(object, name);

	assert_true(json_is_integer(value));
	return (uint32_t)json_integer_value(value);
}

static uint64_t hex_number(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	assert_non_null(text);
	return strtoull(text, NULL, 16);
}

static uint8_t *hex_bytes(const json_t *object, const char *name, size_t *bytes)
{
	const char *text = json_string_value(json_object_get(object, name));
	uint8_t *data;

	assert_non_null(text);
	*bytes = strlen(text) / 2;
	data = ref_alloc(*bytes, 0);
	assert_int_equal(qmc_hex_decode(text, data, *bytes), QMLA_OK);
	return data;
}

static struct qmk_layout layout_of(const json_t *object, uint32_t layers)
{
	struct qmk_layout layout;
	enum qmk_format format;

	assert_int_equal(
		qmk_format_parse(json_string_value(json_object_get(object, "format")), &format),
		QMLA_OK);
	assert_int_equal(qmk_layout_init(format, layers, number(object, "content_dim"),
					 number(object, "rope_dim"), &layout),
			 QMLA_OK);
	return layout;
}

static void test_layouts(void **state)
{
	json_t *list = load("layouts.json", "layouts"), *item;
	size_t i;

	(void)state;
	json_array_foreach(list, i, item)
	{
		struct qmk_layout layout = layout_of(item, number(item, "layers"));

		assert_int_equal(layout.content_row_bytes, number(item, "content_row_bytes"));
		assert_int_equal(layout.rope_row_bytes, number(item, "rope_row_bytes"));
		assert_int_equal(layout.rope_codes_offset, number(item, "rope_codes_offset"));
		assert_int_equal(layout.content_scales_offset,
				 number(item, "content_scales_offset"));
		assert_int_equal(layout.rope_scales_offset, number(item, "rope_scales_offset"));
		assert_int_equal(layout.page_bytes, number(item, "page_bytes"));
		assert_int_equal(layout.header_bytes, number(item, "header_bytes"));
		assert_int_equal(layout.block_bytes, number(item, "block_bytes"));
		assert_int_equal(qmk_layout_fingerprint(&layout), hex_number(item, "fingerprint"));
	}
	json_decref(list);
}

static void test_accounts(void **state)
{
	json_t *list = load("layouts.json", "accounts"), *item;
	size_t i;

	(void)state;
	json_array_foreach(list, i, item)
	{
		struct qmk_layout layout;
		struct qmk_account account;
		enum qmk_format format;
		double wanted = json_real_value(json_object_get(item, "compression"));

		assert_int_equal(
			qmk_format_parse(json_string_value(json_object_get(item, "format")),
					 &format),
			QMLA_OK);
		assert_int_equal(qmk_layout_init(format, number(item, "layers"), 512, 64, &layout),
				 QMLA_OK);
		qmk_layout_account(&layout, number(item, "tokens"), &account);
		assert_int_equal(account.total_bytes,
				 json_integer_value(json_object_get(item, "total_bytes")));
		assert_int_equal(account.bf16_bytes,
				 json_integer_value(json_object_get(item, "bf16_bytes")));
		assert_true(account.compression > wanted - 1e-4 &&
			    account.compression < wanted + 1e-4);
	}
	json_decref(list);
}

static void assert_row(const json_t *row, const char *name, const float *found, uint32_t count)
{
	size_t bytes;
	uint8_t *wanted = hex_bytes(row, name, &bytes);

	assert_int_equal(bytes, count * sizeof(float));
	assert_memory_equal(found, wanted, bytes);
	ref_free(wanted);
}

/* Every byte of a page means what the format says. */
static void test_pages(void **state)
{
	json_t *list = load("pages.json", "pages"), *item, *row;
	size_t i, j, bytes;

	(void)state;
	json_array_foreach(list, i, item)
	{
		struct qmk_layout layout = layout_of(item, 1);
		uint8_t *page = hex_bytes(item, "page", &bytes);
		uint8_t *block = ref_alloc(layout.block_bytes, 0);
		float *content = ref_alloc(64 * layout.content_dim * sizeof(float), 0);
		float *rope = ref_alloc(64 * layout.rope_dim * sizeof(float), 0);
		uint32_t slot = 0;
		struct qmk_unpack_args args = {
			.layout = &layout,
			.pool = {block, layout.block_bytes},
			.pages = 1,
			.slots = &slot,
			.content = content,
			.rope = rope,
			.content_stride = layout.content_dim,
			.rope_stride = layout.rope_dim,
		};

		assert_int_equal(bytes, layout.page_bytes);
		assert_int_equal(qmk_page_checksum(page, bytes), hex_number(item, "checksum"));
		memcpy(block + layout.header_bytes, page, bytes);
		assert_int_equal(ref_ops->unpack(&args), QMLA_OK);
		json_array_foreach(json_object_get(item, "float32_rows"), j, row)
		{
			uint32_t t = number(row, "token");

			assert_row(row, "content", content + t * layout.content_dim,
				   layout.content_dim);
			assert_row(row, "rope", rope + t * layout.rope_dim, layout.rope_dim);
		}
		assert_true(j > 0);
		ref_free(page);
		ref_free(block);
		ref_free(content);
		ref_free(rope);
	}
	json_decref(list);
}

/* The inputs' recipe: the sum of twelve uniform numbers of 24 bits. */
static float next_normal(struct ref_random *random)
{
	double sum = 0;

	for (unsigned i = 0; i < 12; i++)
		sum += (double)(ref_random_next(random) >> 40) / 16777216;
	return (float)(sum - 6);
}

static float *make_rows(struct ref_random *random, uint32_t dim)
{
	float *rows = ref_alloc(64 * dim * sizeof(float), 0);

	for (uint32_t t = 0; t < 64; t++)
		for (uint32_t k = 0; k < dim; k++)
			rows[t * dim + k] = t == 5 ? 0 : next_normal(random);
	return rows;
}

/* The plain writers give the same bytes as the independent ones. */
static void test_packed(void **state)
{
	json_t *list = load("packed.json", "packed"), *item;
	size_t i, bytes;

	(void)state;
	json_array_foreach(list, i, item)
	{
		struct qmk_layout layout = layout_of(item, 1);
		uint8_t *page = hex_bytes(item, "page", &bytes);
		uint8_t *block = ref_alloc(layout.block_bytes, 0xcc);
		struct ref_random random = {number(item, "seed")};
		float *content = make_rows(&random, layout.content_dim);
		float *rope = make_rows(&random, layout.rope_dim);
		uint32_t slot = 0;
		struct qmk_pack_args args = {
			.layout = &layout,
			.pool = {block, layout.block_bytes},
			.pages = 1,
			.slots = &slot,
			.content = content,
			.rope = rope,
			.content_stride = layout.content_dim,
			.rope_stride = layout.rope_dim,
		};

		args.workspace = ref_alloc(ref_ops->pack_workspace(&args), 0);
		assert_row(item, "first_content", content, 4);
		assert_int_equal(ref_ops->pack(&args), QMLA_OK);
		assert_memory_equal(block + layout.header_bytes, page, bytes);
		ref_free(args.workspace);
		ref_free(page);
		ref_free(block);
		ref_free(content);
		ref_free(rope);
	}
	json_decref(list);
}

static void test_blocks(void **state)
{
	json_t *list = load("blocks.json", "blocks"), *item;
	size_t i, bytes;

	(void)state;
	json_array_foreach(list, i, item)
	{
		struct qmk_layout layout = layout_of(item, number(item, "layers"));
		uint8_t *header = hex_bytes(item, "header", &bytes);
		uint8_t *block = ref_alloc(layout.block_bytes, 0), *field;
		json_t *sums = json_object_get(item, "page_checksums");
		uint64_t checksums[QMK_MAX_LAYERS];
		struct qmk_block_info info = {.generation = hex_number(item, "generation")};
		size_t length;

		assert_int_equal(bytes, layout.header_bytes);
		field = hex_bytes(item, "key", &length);
		assert_int_equal(length, sizeof(info.key));
		memcpy(info.key, field, length);
		ref_free(field);
		field = hex_bytes(item, "identity", &length);
		assert_int_equal(length, sizeof(info.identity));
		memcpy(info.identity, field, length);
		ref_free(field);
		for (uint32_t n = 0; n < layout.layers; n++)
			checksums[n] =
				strtoull(json_string_value(json_array_get(sums, n)), NULL, 16);
		qmk_block_seal_with(&layout, &info, checksums, block);
		assert_memory_equal(block, header, bytes);
		assert_int_equal(qmk_block_digest(&layout, block), hex_number(item, "digest"));
		assert_int_equal(qmk_block_check_header(&layout, &info, header), QMLA_OK);
		field = hex_bytes(item, "page_0", &length);
		assert_int_equal(qmk_page_checksum(field, length), checksums[0]);
		ref_free(field);
		ref_free(header);
		ref_free(block);
	}
	json_decref(list);
}

static void test_pattern_checksums(void **state)
{
	json_t *list = load("blocks.json", "pattern_checksums"), *item;
	size_t i;

	(void)state;
	json_array_foreach(list, i, item)
	{
		uint32_t bytes = number(item, "bytes");
		uint8_t *page = ref_alloc(bytes, 0);

		for (uint32_t n = 0; n < bytes; n++)
			page[n] = (uint8_t)(7 * n + 3);
		assert_int_equal(qmk_page_checksum(page, bytes), hex_number(item, "checksum"));
		ref_free(page);
	}
	json_decref(list);
}

static int run_all(const char *variant)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layouts), cmocka_unit_test(test_accounts),
		cmocka_unit_test(test_pages),   cmocka_unit_test(test_packed),
		cmocka_unit_test(test_blocks),  cmocka_unit_test(test_pattern_checksums),
	};

	return cmocka_run_group_tests_name(variant, tests, NULL, NULL);
}

int main(void)
{
	return ref_run_variants(run_all);
}
