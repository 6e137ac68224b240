/* SPDX-License-Identifier: Apache-2.0 */
/* The proof of a fusion: it passes what is equal, and it must not pass what is not. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/calibrate/fuse_checkpoint.h"
#include "client/calibrate/verify.h"
#include "tests/unit/client/calibrate/random_transform.h"
#include "tests/unit/client/model/fixture.h"

#define LENGTH 80u

struct place {
	char root[256], output[300];
	struct qmw_config config;
	struct qmw_transform *transforms;
	uint32_t tokens[2 * LENGTH];
	struct qmw_verify_job job;
};

static void place_make(struct place *p, const char *source, unsigned what)
{
	fixture_make(p->root);
	snprintf(p->output, sizeof(p->output), "%s/fused", p->root);
	assert_int_equal(qmw_config_read(source, &p->config), QMLA_OK);
	p->transforms = random_transforms(&p->config, what, 9);
	for (uint32_t i = 0; i < 2 * LENGTH; i++)
		p->tokens[i] = (i * i * 13 + i + 5) % p->config.vocab;
	p->job = (struct qmw_verify_job){
		.source = source,
		.fused = p->output,
		.layers = p->transforms,
		.count = p->config.layers,
		.tokens = p->tokens,
		.sequences = 2,
		.length = LENGTH,
		.threads = 1,
	};
	const struct qmw_fuse_job fuse = {
		.source = source,
		.output = p->output,
		.layers = p->transforms,
		.count = p->config.layers,
		.recipe = "random",
		.method = "default",
		.cache = "c4r4",
	};

	assert_int_equal(qmw_fuse_checkpoint(&fuse, NULL), QMLA_OK);
}

static void place_remove(struct place *p)
{
	fixture_remove(p->output);
	random_transforms_free(p->transforms, p->config.layers);
	fixture_remove(p->root);
}

static void check_equal(const char *name, unsigned what)
{
	struct qmw_verify_report report;
	char source[256];
	struct place p;

	snprintf(source, sizeof(source), FIXTURE_GOLDEN "%s", name);
	place_make(&p, source, what);
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_OK);
	print_message("%s: layer %u %.2e, drift %.2e of %.4f\n", name, report.worst_layer,
		      report.layer_error, report.drift, report.source_nats);
	assert_true(report.layer_error > 0 && report.layer_error < 1e-12);
	assert_true(report.drift < 2e-3);
	assert_false(report.differs);
	assert_true(report.source_nats > 1 && report.source_nats < 20);
	place_remove(&p);
}

static void test_equal(void **state)
{
	(void)state;
	check_equal("v2-f32-yarn-qlora-bias-sharded", RANDOM_ALL);
	check_equal("v3-f32-half-qlora-eps-tied", RANDOM_ALL);
	check_equal("v3-bf16-half-bias", RANDOM_ALL);
	check_equal("v3-f16-half-yarn-mscale", RANDOM_ROTATION | RANDOM_ROPE);
	check_equal("v2-bf16-published-config-sharded", RANDOM_SCALE | RANDOM_ROPE);
	check_equal("longcat-f32", RANDOM_ALL);
	check_equal("kimi-k2-published-config-f32", RANDOM_ALL);
}

/* An R that is not quite orthogonal: what the layer's test is for. */
static void test_layer_differs(void **state)
{
	struct qmw_verify_report report = {.drift = -1};
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-f32-half-qlora-eps-tied", RANDOM_ALL);
	p.transforms[1].rotation[5] += 1e-6;
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_ERR_INTERNAL);
	assert_int_equal(report.worst_layer, 1);
	assert_true(report.layer_error > 1e-10 && report.layer_error < 1e-4);
	assert_true(report.drift >= 0 && report.drift < 1e-5);
	assert_true(report.differs);
	place_remove(&p);
}

/* Other weights in the fused directory: what the loss is for. */
static void test_loss_differs(void **state)
{
	struct qmw_verify_report report;
	struct place p;
	size_t length;
	char *file;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-f32-half-qlora-eps-tied", RANDOM_ROTATION);
	file = fixture_read(p.output, "model.safetensors", &length);
	for (size_t i = length / 4; i < length; i += 4) /* the sign of the floats */
		if ((i / 4) % 3 == 0)
			file[i - length % 4 + 3] = (char)(file[i - length % 4 + 3] ^ 0x80);
	fixture_write(p.output, "model.safetensors", file, length);
	free(file);
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_ERR_INTERNAL);
	assert_true(report.layer_error < 1e-12);
	assert_true(report.drift > 2e-3);
	assert_true(report.differs);
	p.job.loss_bound = 1.01 * report.drift;
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_OK);
	place_remove(&p);
}

static bool stop(void *user, uint32_t done, uint32_t of)
{
	(void)user;
	assert_int_equal(of, 4);
	return done < 3;
}

static void test_refusals(void **state)
{
	struct qmw_verify_report report;
	struct place p;

	(void)state;
	place_make(&p, FIXTURE_GOLDEN "v3-f32-half-qlora-eps-tied", RANDOM_ROTATION);
	p.job.progress = stop;
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_ERR_CANCELLED);
	p.job.progress = NULL;
	p.job.count--;
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_ERR_INVALID_ARGUMENT);
	p.job.count++;
	p.job.length = 1;
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_ERR_INVALID_ARGUMENT);
	p.job.length = LENGTH;
	p.tokens[LENGTH + 3] = p.config.vocab;
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_ERR_INVALID_ARGUMENT);
	p.tokens[LENGTH + 3] = 0;
	p.job.fused = "/nonexistent";
	assert_int_equal(qmw_verify(&p.job, &report), QMLA_ERR_NOT_FOUND);
	place_remove(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equal),
		cmocka_unit_test(test_layer_differs),
		cmocka_unit_test(test_loss_differs),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
