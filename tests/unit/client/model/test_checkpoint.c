/* SPDX-License-Identifier: Apache-2.0 */
/* Corrupt, truncated and mismatched checkpoints are refused, each for its own reason. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/model/checkpoint.h"
#include "client/model/file.h"
#include "client/model/model.h"
#include "tests/unit/client/model/fixture.h"

#define SINGLE  "v3-bf16-half-bias"
#define SHARDED "v2-bf16-published-config-sharded"
#define INDEX   "model.safetensors.index.json"
#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"

static char directory[256];

static void copy(const char *name)
{
	char from[512];

	fixture_make(directory);
	snprintf(from, sizeof(from), FIXTURE_GOLDEN "%s", name);
	fixture_copy(from, directory);
}

static void assert_opens(qmla_status_t expected)
{
	const struct qmw_model_options options = {.threads = 1};
	struct qmw_model *model = NULL;

	assert_int_equal(qmw_model_open(directory, &options, &model), expected);
	if (expected)
		assert_null(model);
	qmw_model_close(model);
}

/* Opens, and removes the directory. */
static void expect(qmla_status_t expected)
{
	assert_opens(expected);
	fixture_remove(directory);
}

static void test_missing_files(void **state)
{
	(void)state;
	copy(SINGLE);
	assert_opens(QMLA_OK);
	fixture_delete(directory, "model.safetensors");
	assert_opens(QMLA_ERR_NOT_FOUND);
	fixture_delete(directory, "config.json");
	expect(QMLA_ERR_NOT_FOUND);
	assert_opens(QMLA_ERR_NOT_FOUND); /* no directory */
	copy(SHARDED);
	assert_opens(QMLA_OK);
	fixture_delete(directory, SHARD_2);
	expect(QMLA_ERR_NOT_FOUND);
}

static void test_index(void **state)
{
	static const struct {
		const char *from, *to;
		qmla_status_t status;
	} damages[] = {
		{"{", "[", QMLA_ERR_FORMAT},
		{"\"weight_map\"", "\"map\"", QMLA_ERR_FORMAT},
		{"\"" SHARD_1 "\"", "\"../" SHARD_1 "\"", QMLA_ERR_FORMAT},
		{"\"" SHARD_1 "\"", "\"/etc/passwd\"", QMLA_ERR_FORMAT},
		{"\"" SHARD_1 "\"", "\"\"", QMLA_ERR_FORMAT},
		{"\"" SHARD_1 "\"", "17", QMLA_ERR_FORMAT},
		{"\"" SHARD_1 "\"", "\"absent.safetensors\"", QMLA_ERR_NOT_FOUND},
		{"\"" SHARD_1 "\"", "\"config.json\"", QMLA_ERR_FORMAT},
		/* the tensor is in the other shard, or in none */
		{"\"lm_head.weight\": \"" SHARD_1 "\"", "\"lm_head.weight\": \"" SHARD_2 "\"",
		 QMLA_ERR_FORMAT},
		{"\"model.norm.weight\"", "\"model.form.weight\"", QMLA_ERR_NOT_FOUND},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		copy(SHARDED);
		fixture_replace(directory, INDEX, damages[i].from, damages[i].to);
		expect(damages[i].status);
	}
}

/* A shard with tensors that are indexed elsewhere: their shapes would never be checked. */
static void test_tensor_in_two_shards(void **state)
{
	char *bytes;
	size_t length;

	(void)state;
	copy(SHARDED);
	bytes = fixture_read(directory, SHARD_1, &length);
	fixture_write(directory, "again.safetensors", bytes, length);
	free(bytes);
	assert_opens(QMLA_OK); /* nobody names that file */
	fixture_replace(directory, INDEX, "\"lm_head.weight\": \"" SHARD_1 "\"",
			"\"lm_head.weight\": \"again.safetensors\"");
	expect(QMLA_ERR_FORMAT);
}

/* An index of @count shards, none of which is there, for twenty tensors each. */
static void write_index(uint32_t count)
{
	size_t room = (size_t)count * 20 * 64 + 64, used;
	char *text = malloc(room);

	assert_non_null(text);
	used = (size_t)snprintf(text, room, "{\"weight_map\": {");
	for (uint32_t i = 0; i < 20 * count; i++)
		used += (size_t)snprintf(text + used, room - used, "%s\"t%u\": \"s%u\"",
					 i ? ", " : "", i, i % count);
	used += (size_t)snprintf(text + used, room - used, "}}");
	fixture_write(directory, INDEX, text, used);
	free(text);
}

/* A name counts once however many tensors it holds, and there is a limit. */
static void test_many_shards(void **state)
{
	(void)state;
	copy(SHARDED);
	write_index(4096);
	expect(QMLA_ERR_NOT_FOUND);
	copy(SHARDED);
	write_index(4097);
	expect(QMLA_ERR_TOO_LARGE);
}

static void test_header(void **state)
{
	static const struct {
		const char *from, *to;
		qmla_status_t status;
	} damages[] = {
		{"{", "[", QMLA_ERR_FORMAT},
		{"\"BF16\"", "\"BF17\"", QMLA_ERR_FORMAT},
		{"\"BF16\"", "\"F32\"", QMLA_ERR_FORMAT},      /* bytes do not match */
		{"\"BF16\"", "\"I16\"", QMLA_ERR_UNSUPPORTED}, /* they do, the type does not */
		{"\"shape\":[", "\"shape\":[-1,", QMLA_ERR_FORMAT},
		{"\"shape\":[", "\"shape\":[1.5,", QMLA_ERR_FORMAT},
		{"\"shape\":[", "\"shape\":[4294967296,4294967296,", QMLA_ERR_FORMAT},
		{"\"shape\":[", "\"shape\":[1,1,1,1,1,1,1,1,", QMLA_ERR_FORMAT},
		{"\"shape\":[", "\"shape\":[1,",
		 QMLA_ERR_FORMAT}, /* fits the bytes, not the config */
		{"\"data_offsets\":[0,", "\"data_offsets\":[-2,", QMLA_ERR_FORMAT},
		{"\"data_offsets\":[0,", "\"data_offsets\":[18446744073709551616,",
		 QMLA_ERR_FORMAT},
		{"\"data_offsets\":[", "\"data_offsets\":[0,", QMLA_ERR_FORMAT},
		{"\"data_offsets\"", "\"offsets\"", QMLA_ERR_FORMAT},
		{"\"model.norm.weight\"", "\"model.layers.0.input_layernorm.weight\"",
		 QMLA_ERR_FORMAT}, /* twice */
		{"\"model.norm.weight\"", "\"\"", QMLA_ERR_FORMAT},
		{"\"model.norm.weight\"", "\"other\"", QMLA_ERR_NOT_FOUND},
		{"\"model.layers.1.self_attn.kv_a_proj_with_mqa.bias\"", "\"b\"",
		 QMLA_ERR_NOT_FOUND},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		copy(SINGLE);
		fixture_replace_header(directory, "model.safetensors", damages[i].from,
				       damages[i].to);
		print_message("%s -> %s\n", damages[i].from, damages[i].to);
		expect(damages[i].status);
	}
}

/* Cut at many lengths, and with bytes added. */
static void test_truncated(void **state)
{
	char *bytes;
	size_t length;

	(void)state;
	copy(SINGLE);
	bytes = fixture_read(directory, "model.safetensors", &length);
	for (size_t keep = 0; keep < length; keep += keep < 4200 ? 61 : 40009) {
		fixture_write(directory, "model.safetensors", bytes, keep);
		assert_opens(QMLA_ERR_CORRUPT);
	}
	fixture_write(directory, "model.safetensors", bytes, length - 1);
	assert_opens(QMLA_ERR_CORRUPT);
	fixture_write(directory, "model.safetensors", bytes, length + 1); /* the zero behind */
	assert_opens(QMLA_ERR_FORMAT);
	memset(bytes, 0xff, 8); /* an impossible header length */
	fixture_write(directory, "model.safetensors", bytes, length);
	expect(QMLA_ERR_FORMAT);
	free(bytes);
}

/* A last tensor that ends inside its neighbour: same length, moved begin and end. */
static void test_overlap(void **state)
{
	static const char good[] =
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}";
	uint8_t file[512] = {sizeof(good) - 1};
	struct qmw_checkpoint *checkpoint;
	size_t length = 8 + sizeof(good) - 1 + 16;
	float *values;

	(void)state;
	memcpy(file + 8, good, sizeof(good) - 1);
	fixture_make(directory);
	fixture_write(directory, "model.safetensors", file, length);
	assert_int_equal(qmw_checkpoint_open(directory, &checkpoint), QMLA_OK);
	assert_true(qmw_checkpoint_has(checkpoint, "b"));
	assert_false(qmw_checkpoint_has(checkpoint, "c"));
	assert_int_equal(qmw_checkpoint_read(checkpoint, "a", 2, 0, &values), QMLA_OK);
	free(values);
	assert_int_equal(qmw_checkpoint_read(checkpoint, "a", 1, 2, &values), QMLA_ERR_FORMAT);
	assert_int_equal(qmw_checkpoint_read(checkpoint, "c", 2, 0, &values), QMLA_ERR_NOT_FOUND);
	qmw_checkpoint_close(checkpoint);
	fixture_replace_header(directory, "model.safetensors", "[8,16]", "[4,12]");
	assert_int_equal(qmw_checkpoint_open(directory, &checkpoint), QMLA_ERR_FORMAT);
	fixture_write(directory, "model.safetensors", file, length);
	fixture_replace_header(directory, "model.safetensors", "[8,16]", "[0,8]");
	assert_int_equal(qmw_checkpoint_open(directory, &checkpoint), QMLA_ERR_FORMAT);
	fixture_write(directory, "model.safetensors", file, length);
	fixture_replace_header(directory, "model.safetensors", "[0,8]", "[-0,8]");
	assert_int_equal(qmw_checkpoint_open(directory, &checkpoint), QMLA_OK);
	qmw_checkpoint_close(checkpoint);
	fixture_remove(directory);
}

static void test_not_finite(void **state)
{
	static const uint8_t nan[2] = {0xc0, 0x7f}, infinity[2] = {0x80, 0xff};
	char *bytes;
	size_t length;

	(void)state;
	copy(SINGLE);
	bytes = fixture_read(directory, "model.safetensors", &length);
	memcpy(bytes + length - 2, nan, 2);
	fixture_write(directory, "model.safetensors", bytes, length);
	assert_opens(QMLA_ERR_CORRUPT);
	memcpy(bytes + length - 2, infinity, 2);
	fixture_write(directory, "model.safetensors", bytes, length);
	expect(QMLA_ERR_CORRUPT);
	free(bytes);
}

/* Weights of one model with the config of another. */
static void test_mismatched_config(void **state)
{
	(void)state;
	copy(SINGLE);
	fixture_replace(directory, "config.json", "\"v_head_dim\": 32", "\"v_head_dim\": 24");
	expect(QMLA_ERR_FORMAT);
	copy(SINGLE);
	fixture_replace(directory, "config.json", "\"vocab_size\": 256", "\"vocab_size\": 255");
	expect(QMLA_ERR_FORMAT);
	copy(SINGLE);
	fixture_replace(directory, "config.json", "\"q_lora_rank\": null", "\"q_lora_rank\": 32");
	expect(QMLA_ERR_NOT_FOUND);
	copy("v2-bf16-tied");
	fixture_replace(directory, "config.json", "\"tie_word_embeddings\": true",
			"\"tie_word_embeddings\": false");
	expect(QMLA_ERR_NOT_FOUND);
}

static void test_no_regular_file(void **state)
{
	char *path;

	(void)state;
	copy(SINGLE);
	fixture_delete(directory, "model.safetensors");
	path = qmw_path_join(directory, "model.safetensors");
	assert_int_equal(mkdir(path, 0700), 0);
	assert_opens(QMLA_ERR_FORMAT);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0); /* must not hang */
	assert_opens(QMLA_ERR_FORMAT);
	free(path);
	fixture_remove(directory);
}

/* SHA-256 over the shards' digests, in the order of their names. */
static void test_digest(void **state)
{
	struct qmw_checkpoint *checkpoint;
	uint8_t digest[QMC_SHA256_BYTES], joined[2 * QMC_SHA256_BYTES], expected[QMC_SHA256_BYTES];
	char *bytes;
	size_t length;

	(void)state;
	copy(SHARDED);
	assert_int_equal(qmw_checkpoint_open(directory, &checkpoint), QMLA_OK);
	assert_int_equal(qmw_checkpoint_digest(checkpoint, digest), QMLA_OK);
	qmw_checkpoint_close(checkpoint);
	bytes = fixture_read(directory, SHARD_1, &length);
	qmc_sha256(bytes, length, joined);
	free(bytes);
	bytes = fixture_read(directory, SHARD_2, &length);
	qmc_sha256(bytes, length, joined + QMC_SHA256_BYTES);
	free(bytes);
	qmc_sha256(joined, sizeof(joined), expected);
	assert_memory_equal(digest, expected, sizeof(digest));
	fixture_remove(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_missing_files),
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_tensor_in_two_shards),
		cmocka_unit_test(test_many_shards),
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_overlap),
		cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_mismatched_config),
		cmocka_unit_test(test_no_regular_file),
		cmocka_unit_test(test_digest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
