/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused checkpoints: the same header byte for byte, the same function, constants that the
 * runtime takes, and refusals that leave nothing behind.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/calibrate/fuse_checkpoint.h"
#include "client/model/constants.h"
#include "client/model/model.h"
#include "client/model/runner.h"
#include "client/model/safetensors.h"
#include "kernels/block.h"
#include "tests/unit/client/calibrate/random_transform.h"
#include "tests/unit/client/model/fixture.h"

#define TOKENS 96u
#define VOCAB  256u

struct answer {
	float logits[TOKENS * VOCAB];
	uint8_t identity[32];
};

static void run(const char *directory, const struct qmw_model_options *options,
		struct answer *answer)
{
	struct qmw_runner *runner;
	struct qmw_model *model;
	uint32_t tokens[TOKENS];
	const float *logits;

	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = (i * i * 31 + i * 7 + 3) % VOCAB;
	assert_int_equal(qmw_model_open(directory, options, &model), QMLA_OK);
	assert_int_equal(qmw_model_info(model)->vocab, VOCAB);
	assert_int_equal(qmw_runner_create(model, TOKENS, &runner), QMLA_OK);
	assert_int_equal(qmw_runner_feed(runner, tokens, TOKENS, &logits), QMLA_OK);
	memcpy(answer->logits, logits, sizeof(answer->logits));
	qmw_model_identity(model, answer->identity);
	qmw_runner_destroy(runner);
	qmw_model_close(model);
}

static double difference(const struct answer *a, const struct answer *reference)
{
	double sum = 0, norm = 0;

	for (size_t i = 0; i < TOKENS * VOCAB; i++) {
		sum += pow((double)a->logits[i] - (double)reference->logits[i], 2);
		norm += pow((double)reference->logits[i], 2);
	}
	return sqrt(sum / norm);
}

struct place {
	char root[256], output[300];
	struct qmw_config config;
	struct qmw_transform *transforms;
	struct qmw_fuse_job job;
};

static void place_make(struct place *p, const char *source, unsigned what)
{
	fixture_make(p->root);
	snprintf(p->output, sizeof(p->output), "%s/fused", p->root);
	assert_int_equal(qmw_config_read(source, &p->config), QMLA_OK);
	p->transforms = random_transforms(&p->config, what, 5);
	p->job = (struct qmw_fuse_job){
		.source = source,
		.output = p->output,
		.layers = p->transforms,
		.count = p->config.layers,
		.recipe = "random",
		.method = "default",
		.cache = "c4r4",
	};
}

static void place_remove(struct place *p)
{
	if (access(p->output, F_OK) == 0)
		fixture_remove(p->output);
	random_transforms_free(p->transforms, p->config.layers);
	fixture_remove(p->root);
}

/* Entries of a directory but "." and "..". */
static int count_entries(const char *directory)
{
	DIR *d = opendir(directory);
	int count = 0;

	assert_non_null(d);
	while (readdir(d))
		count++;
	closedir(d);
	return count - 2;
}

static void check_same_header(const char *source, const char *fused, const char *name)
{
	size_t a_length, b_length;
	char *a = fixture_read(source, name, &a_length), *b = fixture_read(fused, name, &b_length);
	uint64_t header;

	assert_int_equal(a_length, b_length);
	memcpy(&header, a, sizeof(header));
	assert_memory_equal(a, b, 8 + header);
	assert_memory_not_equal(a, b, a_length);
	free(a);
	free(b);
}

static void check_headers(const char *source, const char *fused)
{
	DIR *d = opendir(source);
	struct dirent *entry;

	assert_non_null(d);
	while ((entry = readdir(d)))
		if (strncmp(entry->d_name, "model", 5) == 0 &&
		    strcmp(strrchr(entry->d_name, '.'), ".safetensors") == 0)
			check_same_header(source, fused, entry->d_name);
	closedir(d);
}

/* The fused weights alone are the same function, to what their dtype keeps. */
static void check_function(const char *name, unsigned what, double limit)
{
	const struct qmw_model_options exact = {
		.cache = QMW_CACHE_F32, .ignore_calibration = true, .threads = 1};
	const struct qmw_model_options calibrated = {.cache = QMW_CACHE_F32, .threads = 1};
	static struct answer before, after, with;
	struct qmw_fuse_report report;
	char source[256];
	struct place p;

	snprintf(source, sizeof(source), FIXTURE_GOLDEN "%s", name);
	place_make(&p, source, what);
	assert_int_equal(qmw_fuse_checkpoint(&p.job, &report), QMLA_OK);
	check_headers(source, p.output);
	run(source, &exact, &before);
	run(p.output, &exact, &after);
	run(p.output, &calibrated, &with);
	print_message("%s: %u tensors, cast %.2e, logits %.2e and %.2e\n", name, report.changed,
		      report.cast_error, difference(&after, &before), difference(&with, &before));
	assert_true(difference(&after, &before) < limit);
	/* The constants do not act on an exact cache: what they move is rounding. */
	assert_true(difference(&with, &after) < 1e-5);
	assert_memory_not_equal(after.identity, before.identity, 32);
	assert_true(report.changed >= 4 * p.config.layers);
	place_remove(&p);
}

static void test_same_function(void **state)
{
	(void)state;
	check_function("v2-f32-yarn-qlora-bias-sharded", RANDOM_ALL, 2e-6);
	check_function("v3-f32-half-qlora-eps-tied", RANDOM_ALL, 2e-6);
	check_function("v3-f32-rope32-yarn", RANDOM_ALL, 2e-6);
	check_function("v2-f16-rope32-qlora", RANDOM_ALL, 1e-3);
	check_function("v3-f16-half-yarn-mscale", RANDOM_ALL, 1e-3);
	check_function("v3-bf16-half-bias", RANDOM_ALL, 5e-3);
	check_function("v3-bf16-dc512", RANDOM_ALL, 5e-3);
	check_function("v3-bf16-yarn-qlora-bias-sharded", RANDOM_ROTATION | RANDOM_ROPE, 5e-3);
	check_function("v2-bf16-published-config-sharded", RANDOM_SCALE | RANDOM_ROPE, 5e-3);
}

/* A mixture of random experts answers otherwise when rounding moves a token to another expert: the
 * float32 cases show that the function is the same. */
static void test_families(void **state)
{
	(void)state;
	check_function("v2-moe-groups-f32", RANDOM_ALL, 5e-6);
	check_function("v3-moe-groups-f32", RANDOM_ALL, 5e-6);
	check_function("kimi-k2-published-config-f32", RANDOM_ALL, 5e-6);
	check_function("longcat-f32", RANDOM_ALL, 5e-6);
	check_function("longcat-lite-bf16", RANDOM_ALL, 2e-2);
	check_function("minicpm3-bf16", RANDOM_ALL, 2e-2);
	check_function("glm-moe-bf16", RANDOM_ALL, 0.15);
	check_function("v3-moe-moonlight-bf16", RANDOM_ALL, 0.15);
	check_function("v3-moe-fp8", RANDOM_ALL, 0.3);
}

/* What an engine holds in its cache after fusing: the norm's output is u R S. */
static void test_norm_holds_scale(void **state)
{
	const char *source = FIXTURE_GOLDEN "v3-f32-half-qlora-eps-tied";
	const char *name = "model.layers.1.self_attn.kv_a_layernorm.weight";
	struct qmw_safetensors *file;
	const struct qmw_tensor *norm;
	struct place p;
	char path[400];
	float *values;

	(void)state;
	place_make(&p, source, RANDOM_ALL);
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
	snprintf(path, sizeof(path), "%s/model.safetensors", p.output);
	assert_int_equal(qmw_safetensors_load(path, &file), QMLA_OK);
	norm = qmw_safetensors_find(file, name);
	values = malloc(norm->elements * sizeof(*values));
	assert_int_equal(qmw_tensor_to_float(norm, path, values), QMLA_OK);
	for (uint32_t i = 0; i < p.config.content_dim; i++)
		assert_true(values[i] == (float)p.transforms[1].content_scale[i]);
	free(values);
	qmw_safetensors_close(file);
	place_remove(&p);
}

static void test_constants_written(void **state)
{
	const char *source = FIXTURE_GOLDEN "v3-bf16-half-bias";
	struct qmw_fuse_report report;
	struct qmw_constants constants;
	struct place p;

	(void)state;
	place_make(&p, source, RANDOM_ALL);
	p.job.cache = "c2r4";
	p.job.method = "paper";
	p.job.quantiser = "paper";
	p.job.figures = "[{\"x\": 1}, {\"x\": 2}]";
	assert_int_equal(qmw_fuse_checkpoint(&p.job, &report), QMLA_OK);
	assert_int_equal(qmw_constants_open(p.output, &p.config, report.digest, false, &constants),
			 QMLA_OK);
	assert_int_equal(constants.version, 2);
	assert_int_equal(constants.format, QMK_FORMAT_C2R4);
	assert_int_equal(constants.quantiser, QMW_QUANTISER_PAPER);
	assert_string_equal(constants.method, "paper");
	assert_string_equal(constants.recipe, "random");
	assert_true(constants.scaled);
	assert_memory_equal(constants.source_digest, report.source_digest, 32);
	assert_memory_not_equal(report.source_digest, report.digest, 32);
	for (uint32_t i = 0; i < p.config.layers; i++) {
		const struct qmw_layer_constants *l = &constants.layers[i];
		const struct qmw_transform *t = &p.transforms[i];

		assert_null(l->rope_scale);
		assert_null(l->content_rotation);
		for (uint32_t k = 0; k < p.config.content_dim; k++) {
			assert_true(l->content_mean[k] == (float)t->content_mean[k]);
			assert_true(l->content_weight[k] == (float)t->content_weight[k]);
			assert_true(fabs((double)l->content_scale[k] / t->content_scale[k] - 1) <
				    0x1p-8);
		}
		for (uint32_t k = 0; k < p.config.rope_dim * p.config.rope_dim; k++)
			assert_true(l->rope_feedback[k] == (float)t->rope_feedback[k]);
		for (uint32_t k = 0; k < p.config.content_dim * p.config.rope_dim; k++)
			assert_true(l->cross_feedback[k] == (float)t->cross_feedback[k]);
	}
	qmw_constants_close(&constants);
	assert_int_equal(
		qmw_constants_open(p.output, &p.config, report.source_digest, false, &constants),
		QMLA_ERR_IDENTITY_MISMATCH);
	place_remove(&p);
}

static void check_format(const char *directory, enum qmk_format wanted)
{
	const struct qmw_model_options options = {.threads = 1};
	enum qmk_format format;
	struct qmw_model *model;

	assert_int_equal(qmw_constants_read_format(directory, &format), QMLA_OK);
	assert_int_equal(format, wanted);
	assert_int_equal(qmw_model_open(directory, &options, &model), QMLA_OK);
	assert_int_equal(qmw_model_layout(model)->format, wanted);
	qmw_model_close(model);
}

/* Without being told a worker takes the format that the weights were calibrated for. */
static void test_format_of_calibration(void **state)
{
	static const struct {
		const char *cache, *quantiser;
		enum qmk_format format;
	} cases[] = {{"c4r4", NULL, QMK_FORMAT_C4R4},
		     {"c2r4", "default", QMK_FORMAT_C2R4},
		     {"c4r4", "paper", QMK_FORMAT_PAPER_C4R4},
		     {"c2r4", "paper", QMK_FORMAT_C2R4}};
	const char *source = FIXTURE_GOLDEN "v3-bf16-half-bias";
	struct place p;

	(void)state;
	check_format(source, QMK_FORMAT_C4R4);
	place_make(&p, source, RANDOM_ROTATION);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		p.job.cache = cases[i].cache;
		p.job.quantiser = cases[i].quantiser;
		assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
		check_format(p.output, cases[i].format);
		fixture_remove(p.output);
	}
	place_remove(&p);
}

/* A block of a model with the first identity, read by a worker of the second. */
static void check_block(const struct qmw_config *config, const uint8_t *first,
			const uint8_t *second, qmla_status_t status)
{
	struct qmk_block_info info = {.generation = 3};
	struct qmk_layout layout;
	void *block;

	assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, config->layers, config->content_dim,
					 config->rope_dim, &layout),
			 QMLA_OK);
	block = calloc(1, (size_t)layout.block_bytes);
	memcpy(info.identity, first, sizeof(info.identity));
	qmk_block_seal(&layout, &info, block);
	memcpy(info.identity, second, sizeof(info.identity));
	assert_int_equal(qmk_block_check(&layout, &info, block), status);
	free(block);
}

/* Same job, same bytes; another seed, another identity: a worker takes no block of the other. */
static void test_identities(void **state)
{
	const struct qmw_model_options packed = {.threads = 1};
	static struct answer first, again, other, constants_only;
	const char *source = FIXTURE_GOLDEN "v3-bf16-dc512";
	struct place p;

	(void)state;
	place_make(&p, source, RANDOM_ALL);
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
	run(p.output, &packed, &first);
	fixture_remove(p.output);
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
	run(p.output, &packed, &again);
	assert_memory_equal(&again, &first, sizeof(first));
	fixture_remove(p.output);
	p.transforms[1].content_mean[3] += 0.125; /* the weights stay the same */
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
	run(p.output, &packed, &constants_only);
	assert_memory_not_equal(constants_only.identity, first.identity, 32);
	check_block(&p.config, first.identity, again.identity, QMLA_OK);
	check_block(&p.config, first.identity, constants_only.identity, QMLA_ERR_IDENTITY_MISMATCH);
	fixture_remove(p.output);
	p.transforms[0].rope_scale[0] *= 1.5;
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
	run(p.output, &packed, &other);
	assert_memory_not_equal(other.identity, constants_only.identity, 32);
	check_block(&p.config, first.identity, other.identity, QMLA_ERR_IDENTITY_MISMATCH);
	place_remove(&p);
}

/* An identity changes no byte of the weights. */
static void test_nothing_to_fuse(void **state)
{
	const char *source = FIXTURE_GOLDEN "v3-bf16-half-bias";
	struct qmw_fuse_report report;
	struct place p;

	(void)state;
	place_make(&p, source, 0);
	assert_int_equal(qmw_fuse_checkpoint(&p.job, &report), QMLA_OK);
	assert_int_equal(report.changed, 0);
	assert_memory_equal(report.digest, report.source_digest, 32);
	place_remove(&p);
}

static void check_refused(struct place *p, qmla_status_t status)
{
	assert_int_equal(qmw_fuse_checkpoint(&p->job, NULL), status);
	assert_int_equal(count_entries(p->root), 0);
}

static void test_refused_jobs(void **state)
{
	struct place p;
	double kept;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-bf16-half-bias", RANDOM_ALL);
	p.job.count--;
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.job.count++;
	p.transforms[1].content_dim *= 2;
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.transforms[1].content_dim /= 2;
	kept = p.transforms[0].rotation[7];
	p.transforms[0].rotation[7] += 1e-3;
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.transforms[0].rotation[7] = NAN;
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.transforms[0].rotation[7] = kept;
	kept = p.transforms[0].content_scale[3];
	p.transforms[0].content_scale[3] = 0;
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.transforms[0].content_scale[3] = kept;
	p.transforms[0].rope_angle[0] = INFINITY;
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.transforms[0].rope_angle[0] = 0;
	p.job.cache = "c3r3";
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.job.cache = "c4r4";
	p.job.figures = "{}";
	check_refused(&p, QMLA_ERR_INVALID_ARGUMENT);
	p.job.figures = NULL;
	p.job.source = "/nonexistent";
	check_refused(&p, QMLA_ERR_NOT_FOUND);
	place_remove(&p);
}

static void test_output_is_kept(void **state)
{
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-bf16-half-bias", RANDOM_ROTATION);
	assert_int_equal(mkdir(p.output, 0755), 0);
	fixture_write(p.output, "mine", "x", 1);
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(count_entries(p.output), 1);
	fixture_delete(p.output, "mine"); /* an empty directory may be taken */
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
	assert_int_equal(count_entries(p.root), 1);
	p.job.output = "/nonexistent/fused";
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_ERR_NOT_FOUND);
	place_remove(&p);
}

static bool stop(void *user, uint64_t done, uint64_t total)
{
	(void)user;
	assert_true(done <= total);
	return done < total / 2;
}

static void test_cancelled(void **state)
{
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-bf16-half-bias", RANDOM_ROTATION);
	p.job.progress = stop;
	check_refused(&p, QMLA_ERR_CANCELLED);
	place_remove(&p);
}

/* Files that may not grow are what a full disk is to a writer. */
static void test_full_disk(void **state)
{
	struct rlimit before, low = {4096, 4096};
	struct place p;
	qmla_status_t status;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-bf16-half-bias", RANDOM_ROTATION);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	low.rlim_max = before.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
	status = qmw_fuse_checkpoint(&p.job, NULL);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_true(status == QMLA_ERR_NO_SPACE || status == QMLA_ERR_TOO_LARGE);
	assert_int_equal(count_entries(p.root), 0);
	place_remove(&p);
}

/* Other weights beside the checkpoint are not the fused ones and stay behind; the rest comes. */
static void test_other_files(void **state)
{
	struct place p;
	char source[256];
	size_t length;
	char *text;

	(void)state;
	fixture_make(source);
	fixture_copy(FIXTURE_GOLDEN "v3-bf16-half-bias", source);
	fixture_write(source, "tokenizer.json", "{}", 2);
	fixture_write(source, "pytorch_model.bin", "old", 3);
	fixture_write(source, "consolidated.safetensors", "old", 3);
	fixture_write(source, ".hidden", "x", 1);
	fixture_write(source, "quantmla.txt", "x", 1);
	place_make(&p, source, RANDOM_ROTATION);
	assert_int_equal(qmw_fuse_checkpoint(&p.job, NULL), QMLA_OK);
	text = fixture_read(p.output, "tokenizer.json", &length);
	assert_string_equal(text, "{}");
	free(text);
	/* config.json, model.safetensors, tokenizer.json, quantmla.json, quantmla.safetensors */
	assert_int_equal(count_entries(p.output), 5);
	place_remove(&p);
	fixture_remove(source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_function),
		cmocka_unit_test(test_families),
		cmocka_unit_test(test_norm_holds_scale),
		cmocka_unit_test(test_constants_written),
		cmocka_unit_test(test_identities),
		cmocka_unit_test(test_format_of_calibration),
		cmocka_unit_test(test_nothing_to_fuse),
		cmocka_unit_test(test_refused_jobs),
		cmocka_unit_test(test_output_is_kept),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_other_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
