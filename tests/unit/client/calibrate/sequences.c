/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/calibrate/sequences.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct qmw_row_file *create(const struct sequences *s, const char *name, uint32_t blocks)
{
	const uint8_t tag[QMC_SHA256_BYTES] = {1};
	struct qmw_row_file *file;
	char path[96];

	snprintf(path, sizeof(path), "%s/%s", s->folder, name);
	assert_int_equal(qmw_row_file_create(path, tag, blocks,
					     (uint64_t)s->layer.n * s->layer.config.hidden, &file),
			 QMLA_OK);
	return file;
}

void sequences_make(const struct layer_shape *shape, uint32_t train, uint32_t held_out,
		    uint32_t threads, struct sequences *s)
{
	uint64_t seed = 77;
	size_t count;

	memset(s, 0, sizeof(*s));
	layer_make(shape, 5, &s->layer);
	count = (size_t)s->layer.n * s->layer.config.hidden;
	strcpy(s->folder, "/tmp/qmla-sequences-XXXXXX");
	assert_non_null(mkdtemp(s->folder));
	assert_int_equal(
		qmw_operator_create(&s->layer.config, &s->layer.rope, &s->layer.single, &s->op),
		QMLA_OK);
	assert_int_equal(qmw_team_create(threads, &s->team), QMLA_OK);
	s->inputs = create(s, "input", train + held_out);
	for (uint32_t i = 0; i < train + held_out; i++) {
		double *wide = layer_random_rows(&seed, count, 2);
		float *values = layer_to_float(wide, count);

		/* The first is the layer's own input, for tests that know its exact rows. */
		assert_int_equal(
			qmw_row_file_write(s->inputs, i, i == 0 ? s->layer.single_input : values),
			QMLA_OK);
		free(values);
		free(wide);
	}
	s->samples = (struct qmw_samples){.config = &s->layer.config,
					  .rope = &s->layer.rope,
					  .op = s->op,
					  .inputs = s->inputs,
					  .team = s->team,
					  .train = train,
					  .held_out = held_out,
					  .length = s->layer.n,
					  .seed = 1};
	s->outputs = create(s, "output", train + held_out);
	assert_int_equal(qmw_samples_outputs(&s->samples, s->outputs), QMLA_OK);
}

void sequences_free(struct sequences *s)
{
	qmw_row_file_close(s->inputs);
	qmw_row_file_close(s->outputs);
	qmw_team_destroy(s->team);
	qmw_operator_destroy(s->op);
	layer_free(&s->layer);
	rmdir(s->folder);
}
