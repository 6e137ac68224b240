/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration files: transforms leave the model's answer as it is (quantisation
 * off), and files that do not fit are refused with the reason.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/constants.h"
#include "client/model/model.h"
#include "client/model/numeric.h"
#include "client/model/runner.h"
#include "client/model/safetensors.h"
#include "tests/unit/client/model/fixture.h"

struct loaded {
	float *logits;
	uint8_t identity[32];
	char calibration[96];
	bool calibrated;
};

/* Logits of a golden case's 138 tokens from the checkpoint in @directory. */
static struct loaded run(const char *directory, const char *name,
			 const struct qmw_model_options *options)
{
	struct qmw_safetensors *golden;
	struct qmw_runner *runner;
	struct qmw_model *model;
	uint32_t tokens[138];
	const float *logits;
	struct loaded out;
	char path[512];

	snprintf(path, sizeof(path), FIXTURE_GOLDEN "%s/golden.safetensors", name);
	assert_int_equal(qmw_safetensors_load(path, &golden), QMLA_OK);
	for (size_t i = 0; i < 138; i++)
		memcpy(&tokens[i], qmw_safetensors_find(golden, "tokens")->data + 8 * i, 4);
	assert_int_equal(qmw_model_open(directory, options, &model), QMLA_OK);
	assert_int_equal(qmw_runner_create(model, 138, &runner), QMLA_OK);
	assert_int_equal(qmw_runner_feed(runner, tokens, 138, &logits), QMLA_OK);
	out.logits = malloc((size_t)138 * 256 * sizeof(float));
	memcpy(out.logits, logits, (size_t)138 * 256 * sizeof(float));
	qmw_model_identity(model, out.identity);
	out.calibrated = qmw_model_info(model)->calibrated;
	strcpy(out.calibration, qmw_model_info(model)->calibration);
	qmw_runner_destroy(runner);
	qmw_model_close(model);
	qmw_safetensors_close(golden);
	return out;
}

static double difference(const float *a, const float *reference)
{
	double sum = 0, norm = 0;

	for (size_t i = 0; i < (size_t)138 * 256; i++) {
		sum += pow((double)a[i] - reference[i], 2);
		norm += pow(reference[i], 2);
	}
	return sqrt(sum / norm);
}

static void check_equivalence(const char *name, const struct fixture_calibration *calibration,
			      enum qmw_cache_kind cache, double limit)
{
	const struct qmw_model_options options = {.cache = cache, .threads = 1};
	struct loaded plain, fused;
	char from[512], directory[256];
	double error;

	fixture_make(directory);
	snprintf(from, sizeof(from), FIXTURE_GOLDEN "%s", name);
	fixture_copy(from, directory);
	plain = run(directory, name, &options);
	fixture_calibrate(directory, calibration);
	fused = run(directory, name, &options);
	error = difference(fused.logits, plain.logits);
	print_message("%-32s fused against plain: %.2e (limit %.0e)\n", name, error, limit);
	assert_true(error < limit);
	assert_false(plain.calibrated);
	assert_string_equal(plain.calibration, "none");
	assert_true(fused.calibrated);
	assert_string_equal(fused.calibration, "random");
	assert_memory_not_equal(plain.identity, fused.identity, 32);
	free(plain.logits);
	free(fused.logits);
	fixture_remove(directory);
}

static void test_transforms_change_nothing(void **state)
{
	const struct fixture_calibration hadamard = {QMW_ROTATION_HADAMARD, .rope_scale = true};
	const struct fixture_calibration matrix = {QMW_ROTATION_MATRIX, .rope_scale = true};

	(void)state;
	check_equivalence("v3-bf16-dc512", &hadamard, QMW_CACHE_F32, 1e-5);
	check_equivalence("v3-f16-half-yarn-mscale", &hadamard, QMW_CACHE_F32, 1e-5);
	check_equivalence("v2-f32-yarn-qlora-bias-sharded", &matrix, QMW_CACHE_F32, 1e-5);
	check_equivalence("v3-bf16-half-bias", &matrix, QMW_CACHE_F32, 1e-5);
	check_equivalence("v2-bf16-tied", &matrix, QMW_CACHE_F32, 1e-5);
	check_equivalence("v3-f32-rope32-yarn", &matrix, QMW_CACHE_F32, 1e-5);
}

/* Means are taken from the rows and added back: large ones would show. */
static void test_means_change_nothing(void **state)
{
	const struct fixture_calibration means = {QMW_ROTATION_MATRIX, .mean = 0.5f,
						  .feedback = 0.01f, .rope_scale = true};

	(void)state;
	check_equivalence("v3-bf16-dc512", &means, QMW_CACHE_BF16, 5e-3);
	check_equivalence("v2-f32-yarn-qlora-bias-sharded", &means, QMW_CACHE_BF16, 5e-3);
	check_equivalence("v3-bf16-half-bias", &means, QMW_CACHE_BF16, 5e-3);
}

/* With the packed cache the constants act: bytes and answers are others, and still near. */
static void test_constants_act_when_packed(void **state)
{
	const struct fixture_calibration calibration = {QMW_ROTATION_HADAMARD, .mean = 0.2f,
							.feedback = 0.02f};
	const struct qmw_model_options packed = {.threads = 1}, exact = {.cache = QMW_CACHE_F32};
	const struct qmw_model_options ignore = {.threads = 1, .ignore_calibration = true};
	struct loaded calibrated, plain, ignored, truth;
	char directory[256];

	(void)state;
	fixture_make(directory);
	fixture_copy(FIXTURE_GOLDEN "v3-bf16-dc512", directory);
	plain = run(directory, "v3-bf16-dc512", &packed);
	fixture_calibrate(directory, &calibration);
	calibrated = run(directory, "v3-bf16-dc512", &packed);
	ignored = run(directory, "v3-bf16-dc512", &ignore);
	truth = run(directory, "v3-bf16-dc512", &exact);
	assert_memory_equal(ignored.identity, plain.identity, 32);
	assert_memory_equal(ignored.logits, plain.logits, (size_t)138 * 256 * sizeof(float));
	assert_false(ignored.calibrated);
	assert_true(difference(calibrated.logits, plain.logits) > 1e-3);
	assert_true(difference(calibrated.logits, truth.logits) < 0.2);
	assert_true(difference(plain.logits, truth.logits) < 0.2);
	free(plain.logits);
	free(calibrated.logits);
	free(ignored.logits);
	free(truth.logits);
	fixture_remove(directory);
}

static qmla_status_t open_after(const char *directory)
{
	const struct qmw_model_options options = {.threads = 1};
	struct qmw_model *model = NULL;
	qmla_status_t status = qmw_model_open(directory, &options, &model);

	if (!status)
		qmw_model_close(model);
	else
		assert_null(model);
	return status;
}

struct damage {
	const char *file, *from, *to;
	bool header;
	qmla_status_t status;
};

static void test_refused_files(void **state)
{
	static const struct damage damages[] = {
		{"quantmla.json", "\"version\": 1", "\"version\": 3", false, QMLA_ERR_FORMAT},
		{"quantmla.json", "\"version\": 1,", "", false, QMLA_ERR_FORMAT},
		{"quantmla.json", "{", "[", false, QMLA_ERR_FORMAT},
		{"quantmla.json", "\"matrix\"", "\"fourier\"", false, QMLA_ERR_FORMAT},
		{"quantmla.json", "\"matrix\"", "\"identity\"", false, QMLA_ERR_FORMAT},
		{"quantmla.json", "\"random\"", "7", false, QMLA_ERR_FORMAT},
		{"quantmla.json", "model_sha256\": \"", "model_sha256\": \"0", false,
		 QMLA_ERR_FORMAT},
		{"quantmla.json", "model_sha256\": \"", "model_sha256\": \"zz", false,
		 QMLA_ERR_FORMAT},
		{"quantmla.safetensors", "layers.0.content_mean", "layers.9.content_mean", true,
		 QMLA_ERR_FORMAT},
		{"quantmla.safetensors", "layers.0.content_mean", "content_mean", true,
		 QMLA_ERR_FORMAT},
		{"quantmla.safetensors", "layers.0.content_mean", "layers.0.content_mena", true,
		 QMLA_ERR_FORMAT},
		/* not as the program writes a number: it would not be found under its own name */
		{"quantmla.safetensors", "layers.0.content_mean", "layers.00.content_mean", true,
		 QMLA_ERR_FORMAT},
		{"quantmla.safetensors", "layers.0.content_mean", "layers.+0.content_mean", true,
		 QMLA_ERR_FORMAT},
		{"quantmla.safetensors", "layers.0.content_mean", "layers. 0.content_mean", true,
		 QMLA_ERR_FORMAT},
		{"quantmla.safetensors", "\"shape\":[512]", "\"shape\":[16,32]", true,
		 QMLA_ERR_FORMAT},
		{"quantmla.safetensors", "layers.0.content_rotation", "layers.0.content_feedback_",
		 true, QMLA_ERR_FORMAT},
		/* the rotation is not unit lower triangular, the feedback is not orthogonal */
		{"quantmla.safetensors", "layers.0.content_rotation", "layers.0.content_feedback",
		 true, QMLA_ERR_FORMAT},
	};
	const struct fixture_calibration calibration = {QMW_ROTATION_MATRIX, .mean = 0.2f};

	(void)state;
	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		const struct damage *d = &damages[i];
		char directory[256];

		fixture_make(directory);
		fixture_copy(FIXTURE_GOLDEN "v3-bf16-dc512", directory);
		fixture_calibrate(directory, &calibration);
		assert_int_equal(open_after(directory), QMLA_OK);
		if (d->header)
			fixture_replace_header(directory, d->file, d->from, d->to);
		else
			fixture_replace(directory, d->file, d->from, d->to);
		assert_int_equal(open_after(directory), d->status);
		fixture_remove(directory);
	}
}

static void test_other_weights(void **state)
{
	const struct fixture_calibration calibration = {QMW_ROTATION_HADAMARD, .mean = 0.2f};
	char directory[256], *bytes;
	size_t length;

	(void)state;
	fixture_make(directory);
	fixture_copy(FIXTURE_GOLDEN "v3-bf16-dc512", directory);
	fixture_calibrate(directory, &calibration);
	bytes = fixture_read(directory, "model.safetensors", &length);
	bytes[length - 2] ^= 1;
	fixture_write(directory, "model.safetensors", bytes, length);
	free(bytes);
	assert_int_equal(open_after(directory), QMLA_ERR_IDENTITY_MISMATCH);
	fixture_delete(directory, "quantmla.json");
	assert_int_equal(open_after(directory), QMLA_OK);
	fixture_remove(directory);
}

static void test_missing_and_unfit(void **state)
{
	const struct fixture_calibration hadamard = {QMW_ROTATION_HADAMARD, .mean = 0.2f};
	char directory[256];

	(void)state;
	fixture_make(directory);
	fixture_copy(FIXTURE_GOLDEN "v3-bf16-dc512", directory);
	fixture_calibrate(directory, &hadamard);
	fixture_delete(directory, "quantmla.safetensors");
	assert_int_equal(open_after(directory), QMLA_ERR_NOT_FOUND);
	fixture_remove(directory);

	fixture_make(directory); /* 192 is no power of two */
	fixture_copy(FIXTURE_GOLDEN "v2-bf16-tied", directory);
	fixture_calibrate(directory, &hadamard);
	assert_int_equal(open_after(directory), QMLA_ERR_FORMAT);
	fixture_remove(directory);
}

/* One array of layer 0 alone; @value in the middle of it. */
static qmla_status_t open_with_array(const char *name, uint64_t rows, uint64_t columns, float fill,
				     size_t at, float value)
{
	const struct fixture_calibration none = {.rotation = QMW_ROTATION_IDENTITY};
	struct fixture_tensor tensor = {.rank = columns ? 2 : 1, .shape = {rows, columns}};
	size_t count = rows * (columns ? columns : 1);
	char directory[256];
	qmla_status_t status;

	fixture_make(directory);
	fixture_copy(FIXTURE_GOLDEN "v3-bf16-half-bias", directory);
	fixture_calibrate(directory, &none);
	snprintf(tensor.name, sizeof(tensor.name), "layers.0.%s", name);
	tensor.values = calloc(count, sizeof(float));
	for (size_t i = 0; i < count; i++)
		tensor.values[i] = columns ? (float)(i % (columns + 1) == 0) : fill;
	tensor.values[at] = value;
	fixture_write_tensors(directory, "quantmla.safetensors", &tensor, 1);
	status = open_after(directory);
	fixture_remove(directory);
	return status;
}

static void test_array_forms(void **state)
{
	(void)state;
	assert_int_equal(open_with_array("content_weight", 128, 0, 1, 5, 2), QMLA_OK);
	assert_int_equal(open_with_array("content_weight", 128, 0, 1, 5, 0), QMLA_ERR_FORMAT);
	assert_int_equal(open_with_array("rope_weight", 64, 0, 1, 5, -1), QMLA_ERR_FORMAT);
	assert_int_equal(open_with_array("rope_scale", 32, 0, 1, 5, 0), QMLA_ERR_FORMAT);
	assert_int_equal(open_with_array("content_mean", 128, 0, 0, 5, NAN), QMLA_ERR_CORRUPT);
	assert_int_equal(open_with_array("rope_mean", 64, 0, 0, 5, INFINITY), QMLA_ERR_CORRUPT);
	assert_int_equal(open_with_array("rope_mean", 32, 0, 0, 5, 1), QMLA_ERR_FORMAT);
	assert_int_equal(open_with_array("rope_feedback", 64, 64, 0, 64, 0.5f), QMLA_OK);
	assert_int_equal(open_with_array("rope_feedback", 64, 64, 0, 1, 0.5f), QMLA_ERR_FORMAT);
	assert_int_equal(open_with_array("rope_feedback", 64, 64, 0, 65, 2), QMLA_ERR_FORMAT);
	assert_int_equal(open_with_array("content_feedback", 128, 128, 0, 128, 0.5f), QMLA_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transforms_change_nothing),
		cmocka_unit_test(test_means_change_nothing),
		cmocka_unit_test(test_constants_act_when_packed),
		cmocka_unit_test(test_refused_files),
		cmocka_unit_test(test_other_weights),
		cmocka_unit_test(test_missing_and_unfit),
		cmocka_unit_test(test_array_forms),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
