/* SPDX-License-Identifier: Apache-2.0 */
/* Whole calibrations of small random models: families, repetition, interruption, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "client/calibrate/calibrate.h"
#include "client/calibrate/disk.h"
#include "client/model/checkpoint.h"
#include "client/model/file.h"
#include "client/model/model.h"
#include "tests/unit/client/calibrate/near.h"
#include "tests/unit/client/model/fixture.h"

#define TOKENS 9000u

struct place {
	char root[256], output[300], folder[320];
	uint32_t tokens[TOKENS];
	struct qmw_calibrate_job job;
};

static void place_make(struct place *p, const char *model, enum qmw_method method)
{
	uint64_t seed = 3;

	fixture_make(p->root);
	snprintf(p->output, sizeof(p->output), "%s/out", p->root);
	snprintf(p->folder, sizeof(p->folder), "%s.calibrate", p->output);
	for (uint32_t i = 0; i < TOKENS; i++)
		p->tokens[i] = (uint32_t)(128 + 120 * fixture_random(&seed));
	p->job = (struct qmw_calibrate_job){
		.model = model,
		.output = p->output,
		.tokens = p->tokens,
		.token_count = TOKENS,
		.length = 80,
		.train = 4,
		.held_out = 2,
		.method = {.method = method, .content_bits = 4, .probes = 2, .steps = 2},
		.cache = "c4r4",
		.seed = 1,
		.threads = 2,
	};
}

static void place_remove(struct place *p)
{
	assert_int_equal(qmw_disk_remove(p->folder), QMLA_OK);
	assert_int_equal(qmw_disk_remove(p->output), QMLA_OK);
	fixture_remove(p->root);
}

static void check_report(const struct qmw_calibrate_report *report, uint32_t layers)
{
	assert_int_equal(report->layers, layers);
	assert_int_equal(report->train, 4);
	assert_int_equal(report->held_out, 2);
	assert_true(report->verified.layer_error < QMW_VERIFY_LAYER_BOUND);
	for (uint32_t i = 0; i < layers; i++) {
		assert_true(report->figures[i].before.both > 0);
		assert_true(report->figures[i].after.both > 0);
	}
}

/* The result opens as any checkpoint does, with constants that say what they are. */
static void check_output(const struct place *p, const char *method)
{
	struct qmw_model_options options = {.threads = 1, .cache = QMW_CACHE_PACKED};
	struct qmw_model *model;
	char *text;
	size_t length;

	assert_int_equal(qmw_model_open(p->output, &options, &model), QMLA_OK);
	assert_true(qmw_model_info(model)->calibrated);
	assert_string_equal(qmk_format_name(qmw_model_info(model)->format), p->job.cache);
	qmw_model_close(model);
	text = fixture_read(p->output, "quantmla.json", &length);
	assert_non_null(strstr(text, method));
	free(text);
	assert_false(qmw_file_exists(p->folder));
}

/* Calibrates, fuses, is proved equal and opens. */
static void run_place(struct place *p, uint32_t layers)
{
	struct qmw_calibrate_report report = {0};

	assert_int_equal(qmw_calibrate(&p->job, &report), QMLA_OK);
	check_report(&report, layers);
	assert_false(report.verified.differs);
	print_message("%s, %s, %s: layers %.1e, loss %.1e of %.2f\n",
		      strrchr(p->job.model, '/') + 1, qmw_method_name(p->job.method.method),
		      p->job.cache, report.verified.layer_error, report.verified.drift,
		      report.verified.source_nats);
	check_output(p, qmw_method_name(p->job.method.method));
	qmw_calibrate_report_free(&report);
}

static void run_model(const char *model, enum qmw_method method, uint32_t layers)
{
	struct qmw_calibrate_report report = {0};
	struct place p;

	place_make(&p, model, method);
	run_place(&p, layers);
	/* It is there now, and stays as it is. */
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_ALREADY_EXISTS);
	place_remove(&p);
}

/*
 * Of every family. Rounding a weight to BF16 anew gives a few rows other experts, which on random
 * models is worth about a thousandth: their loss has a wider bound than the usual one.
 */
static void test_families(void **state)
{
	static const struct {
		const char *model;
		uint32_t layers;
		double loss_bound;
	} cases[] = {
		{FIXTURE_GOLDEN "v2-f32-yarn-qlora-bias-sharded", 2, 0},
		{FIXTURE_GOLDEN "v2-moe-groups-f32", 3, 0},
		{FIXTURE_GOLDEN "v3-f32-half-qlora-eps-tied", 2, 0},
		{FIXTURE_GOLDEN "v3-moe-groups-f32", 3, 0},
		{FIXTURE_GOLDEN "v3-moe-moonlight-bf16", 3, 0.01},
		{FIXTURE_GOLDEN "kimi-k2-published-config-f32", 3, 0},
		{FIXTURE_GOLDEN "glm-moe-bf16", 3, 0.01},
		{FIXTURE_GOLDEN "longcat-f32", 4, 0},
		{FIXTURE_GOLDEN "longcat-lite-bf16", 2, 0.01},
		{FIXTURE_GOLDEN "minicpm3-bf16", 2, 0},
	};
	struct place p;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		place_make(&p, cases[i].model, QMW_METHOD_DEFAULT);
		p.job.loss_bound = cases[i].loss_bound;
		run_place(&p, cases[i].layers);
		place_remove(&p);
	}
}

static void place_make_two_bits(struct place *p, const char *model, enum qmw_method method)
{
	place_make(p, model, method);
	p->job.cache = "c2r4";
	p->job.loss_bound = 0.01; /* as above */
	p->job.method.content_bits = 2;
}

static void test_two_bits(void **state)
{
	static const struct {
		const char *model;
		enum qmw_method method;
		uint32_t layers;
	} cases[] = {
		{FIXTURE_GOLDEN "glm-moe-bf16", QMW_METHOD_DEFAULT, 3},
		{FIXTURE_GOLDEN "longcat-lite-bf16", QMW_METHOD_PAPER, 2},
	};
	struct place p;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		place_make_two_bits(&p, cases[i].model, cases[i].method);
		run_place(&p, cases[i].layers);
		place_remove(&p);
	}
}

/* Changed weights are rounded to FP8 again, which the loss shows: --loss-bound says what it may. */
static void test_fp8(void **state)
{
	struct qmw_calibrate_report report = {0};
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-moe-fp8", QMW_METHOD_DEFAULT);
	p.job.loss_bound = 1e-5;
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_INTERNAL);
	assert_true(report.verified.differs);
	assert_true(report.verified.layer_error < QMW_VERIFY_LAYER_BOUND);
	assert_true(report.verified.drift > 1e-5);
	qmw_calibrate_report_free(&report);
	assert_false(qmw_file_exists(p.output));
	p.job.loss_bound = 0.05;
	run_place(&p, 2);
	place_remove(&p);
}

static void test_methods(void **state)
{
	static const enum qmw_method methods[] = {QMW_METHOD_PAPER, QMW_METHOD_RTN,
						  QMW_METHOD_SMOOTHQUANT, QMW_METHOD_QUAROT};

	(void)state;
	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
		run_model(FIXTURE_GOLDEN "v3-f16-half-yarn-mscale", methods[i], 2);
}

/* Digests of everything that decides what the output does. */
static void read_all(const struct place *p, uint8_t digests[3][QMC_SHA256_BYTES])
{
	static const char *const names[] = {"quantmla.json", "quantmla.safetensors",
					    "model.safetensors"};

	for (int i = 0; i < 3; i++) {
		size_t length;
		char *bytes = fixture_read(p->output, names[i], &length);

		assert_int_equal(qmc_sha256(bytes, length, digests[i]), QMLA_OK);
		free(bytes);
	}
}

/* Ends the run at its n-th report. */
struct fuse_wire {
	uint32_t left;
};

static bool burn(void *user, const struct qmw_calibrate_progress *progress)
{
	struct fuse_wire *wire = user;

	(void)progress;
	return wire->left == 0 || --wire->left > 0;
}

/* Stopped again and again at any point, the run ends with the bytes of one that was not. */
static void test_interrupted(void **state)
{
	uint8_t whole[3][QMC_SHA256_BYTES], pieces[3][QMC_SHA256_BYTES];
	struct qmw_calibrate_report report = {0};
	struct fuse_wire wire = {0};
	uint32_t stops = 0, continued = 0;
	qmla_status_t status;
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-moe-groups-f32", QMW_METHOD_DEFAULT);
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_OK);
	assert_int_equal(report.continued, 0);
	qmw_calibrate_report_free(&report);
	read_all(&p, whole);
	place_remove(&p);
	place_make(&p, FIXTURE_GOLDEN "v3-moe-groups-f32", QMW_METHOD_DEFAULT);
	p.job.progress = burn;
	p.job.user = &wire;
	p.job.threads = 1;
	do {
		wire.left = 40 + 90 * stops;
		status = qmw_calibrate(&p.job, &report);
		if (status == QMLA_ERR_CANCELLED) {
			stops++;
			assert_false(qmw_file_exists(p.output));
		}
	} while (status == QMLA_ERR_CANCELLED && stops < 50);
	assert_int_equal(status, QMLA_OK);
	continued = report.continued;
	qmw_calibrate_report_free(&report);
	assert_in_range(stops, 2, 40);
	assert_true(continued > 0);
	read_all(&p, pieces);
	assert_memory_equal(whole, pieces, sizeof(whole));
	place_remove(&p);
}

/* Another seed, other probes, other constants. */
static void test_seed(void **state)
{
	uint8_t digests[2][3][QMC_SHA256_BYTES];
	struct qmw_calibrate_report report = {0};
	struct place p;

	(void)state;
	for (int i = 0; i < 2; i++) {
		place_make(&p, FIXTURE_GOLDEN "v3-f16-half-yarn-mscale", QMW_METHOD_DEFAULT);
		p.job.seed = 1 + (uint64_t)i;
		assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_OK);
		qmw_calibrate_report_free(&report);
		read_all(&p, digests[i]);
		place_remove(&p);
	}
	assert_memory_not_equal(digests[0][1], digests[1][1], QMC_SHA256_BYTES);
}

/* Makes what a run leaves that was killed while it fused, and looks whether it is there. */
static void stale_path(const struct place *p, const char *name, char path[400])
{
	snprintf(path, 400, "%s/fused.partial-killed%s", p->folder, name);
}

struct stale {
	const struct place *place;
	bool fusing, there; /* seen while fusing */
};

static bool look_for_stale(void *user, const struct qmw_calibrate_progress *progress)
{
	struct stale *stale = user;
	char path[400];

	if (progress->stage != QMW_STAGE_FUSE)
		return true;
	stale_path(stale->place, "", path);
	stale->there |= qmw_file_exists(path);
	stale->fusing = true;
	return true;
}

/* A partial checkpoint takes as much room as the one that is to be written. */
static void test_stale_partial_goes_first(void **state)
{
	struct qmw_calibrate_report report = {0};
	struct fuse_wire wire = {.left = 1};
	struct stale stale = {0};
	struct place p;
	char path[400];

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-f16-half-yarn-mscale", QMW_METHOD_RTN);
	p.job.progress = burn;
	p.job.user = &wire;
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_CANCELLED);
	stale_path(&p, "", path);
	assert_int_equal(mkdir(path, 0777), 0);
	fixture_write(path, "model.safetensors", "x", 1);
	stale.place = &p;
	p.job.progress = look_for_stale;
	p.job.user = &stale;
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_OK);
	qmw_calibrate_report_free(&report);
	assert_true(stale.fusing);
	assert_false(stale.there);
	place_remove(&p);
}

/* The linker puts this in the place of the fusion (CMakeLists.txt). */
static bool fusion_breaks;
qmla_status_t __real_qmw_fuse_checkpoint(const struct qmw_fuse_job *job,
					 struct qmw_fuse_report *report);
qmla_status_t __wrap_qmw_fuse_checkpoint(const struct qmw_fuse_job *job,
					 struct qmw_fuse_report *report);

qmla_status_t __wrap_qmw_fuse_checkpoint(const struct qmw_fuse_job *job,
					 struct qmw_fuse_report *report)
{
	return fusion_breaks ? QMLA_ERR_INTERNAL : __real_qmw_fuse_checkpoint(job, report);
}

/* A checkpoint that is another function is told from a program that is broken. */
static void test_failed_proof_is_told(void **state)
{
	struct qmw_calibrate_report report = {0};
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-f16-half-yarn-mscale", QMW_METHOD_QUAROT);
	fusion_breaks = true;
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_INTERNAL);
	assert_null(report.figures);
	assert_false(report.verified.differs);
	fusion_breaks = false;
	p.job.loss_bound = 1e-15;
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_INTERNAL);
	assert_true(report.verified.differs && report.verified.drift > 1e-15);
	assert_non_null(report.figures);
	assert_false(qmw_file_exists(p.output));
	qmw_calibrate_report_free(&report);
	place_remove(&p);
}

static void test_refusals(void **state)
{
	struct qmw_calibrate_report report = {0};
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-f16-half-yarn-mscale", QMW_METHOD_DEFAULT);
	p.job.token_count = 159; /* one sequence and a bit */
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_INVALID_ARGUMENT);
	p.job.token_count = TOKENS;
	p.tokens[70] = 100000; /* no such token */
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_INVALID_ARGUMENT);
	p.tokens[70] = 0;
	p.job.model = p.root;
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_NOT_FOUND);
	p.job.model = FIXTURE_GOLDEN "v3-f16-half-yarn-mscale";
	p.job.output = p.job.model;
	assert_int_equal(qmw_calibrate(&p.job, &report), QMLA_ERR_INVALID_ARGUMENT);
	place_remove(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_families),
		cmocka_unit_test(test_two_bits),
		cmocka_unit_test(test_fp8),
		cmocka_unit_test(test_methods),
		cmocka_unit_test(test_interrupted),
		cmocka_unit_test(test_seed),
		cmocka_unit_test(test_stale_partial_goes_first),
		cmocka_unit_test(test_failed_proof_is_told),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
