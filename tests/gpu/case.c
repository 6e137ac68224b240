/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/device_memory.h"

#define LAYERS 2u
#define LAYER  1u

double gpu_uniform(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

float gpu_normal(uint64_t *state)
{
	double radius = sqrt(-2 * log(1 - gpu_uniform(state)));

	return (float)(radius * cos(2 * 3.14159265358979323846 * gpu_uniform(state)));
}

static float *normals(size_t count, float scale, uint64_t *state)
{
	float *values = malloc(count * sizeof(float));

	assert_non_null(values);
	for (size_t i = 0; i < count; i++)
		values[i] = scale * gpu_normal(state);
	return values;
}

/* Unit lower triangular, entries of the size that calibration gives. */
static float *triangle(uint32_t n, uint64_t *state)
{
	float *a = normals((size_t)n * n, 0.05f, state);

	for (uint32_t i = 0; i < n; i++) {
		a[(size_t)i * n + i] = 1;
		for (uint32_t j = i + 1; j < n; j++)
			a[(size_t)i * n + j] = 0;
	}
	return a;
}

static float *weights(uint32_t n, uint64_t *state)
{
	float *d = malloc(n * sizeof(float));

	assert_non_null(d);
	for (uint32_t i = 0; i < n; i++)
		d[i] = (float)(0.1 + gpu_uniform(state));
	return d;
}

static void make_constants(struct gpu_case *self, bool feedback, uint64_t *state)
{
	const uint32_t dc = self->layout.content_dim, dr = self->layout.rope_dim;
	struct qmk_constants *c = &self->constants;

	c->content_mean = normals(dc, 0.3f, state);
	c->rope_mean = normals(dr, 2, state);
	if (feedback) {
		c->content_feedback = triangle(dc, state);
		c->rope_feedback = triangle(dr, state);
		c->content_weight = weights(dc, state);
		c->rope_weight = weights(dr, state);
	}
	self->device_constants = (struct qmk_constants){
		.content_mean = device_copy(c->content_mean, dc * sizeof(float)),
		.rope_mean = device_copy(c->rope_mean, dr * sizeof(float)),
		.content_feedback =
			device_copy(c->content_feedback, (size_t)dc * dc * sizeof(float)),
		.content_weight = device_copy(c->content_weight, dc * sizeof(float)),
		.rope_feedback = device_copy(c->rope_feedback, (size_t)dr * dr * sizeof(float)),
		.rope_weight = device_copy(c->rope_weight, dr * sizeof(float)),
	};
}

static void make_rope(struct gpu_case *self, enum qmk_pairing pairing)
{
	const uint32_t pairs = self->layout.rope_dim / 2;
	float *frequency = malloc(pairs * sizeof(float));

	assert_non_null(frequency);
	for (uint32_t j = 0; j < pairs; j++)
		frequency[j] = (float)pow(10000, -(double)j / pairs);
	self->rope = (struct qmk_rope){pairing, frequency, 1};
	self->device_rope =
		(struct qmk_rope){pairing, device_copy(frequency, pairs * sizeof(float)), 1};
}

/* Pages go to shuffled slots of a pool twice as large, garbage everywhere else. */
static void make_pool(struct gpu_case *self, uint64_t *state)
{
	size_t bytes;

	self->pool_slots = 2 * self->pages + 1;
	self->pool.stride = self->layout.block_bytes + 128;
	bytes = self->pool.stride * self->pool_slots;
	self->pool.base = malloc(bytes);
	self->slots = malloc(self->pool_slots * sizeof(uint32_t));
	assert_non_null(self->pool.base);
	assert_non_null(self->slots);
	for (size_t i = 0; i < bytes; i++)
		((uint8_t *)self->pool.base)[i] = (uint8_t)(256 * gpu_uniform(state));
	for (uint32_t i = 0; i < self->pool_slots; i++)
		self->slots[i] = i;
	for (uint32_t i = self->pool_slots - 1; i > 0; i--) {
		uint32_t j = (uint32_t)((i + 1) * gpu_uniform(state));
		uint32_t swap = self->slots[i];

		self->slots[i] = self->slots[j];
		self->slots[j] = swap;
	}
	self->device_slots = device_copy(self->slots, self->pages * sizeof(uint32_t));
	self->device_pool =
		(struct qmk_pool){device_copy(self->pool.base, bytes), self->pool.stride};
}

struct gpu_case *gpu_case_create(enum qmk_format format, uint32_t content_dim, uint32_t rope_dim,
				 uint32_t pages, bool feedback, enum qmk_pairing pairing,
				 uint64_t seed)
{
	struct gpu_case *self = calloc(1, sizeof(*self));
	size_t tokens = (size_t)pages * QMK_PAGE_TOKENS;
	uint64_t state = seed;

	assert_non_null(self);
	assert_int_equal(qmk_layout_init(format, LAYERS, content_dim, rope_dim, &self->layout),
			 QMLA_OK);
	self->pages = pages;
	make_constants(self, feedback, &state);
	make_rope(self, pairing);
	make_pool(self, &state);
	self->content = normals(tokens * content_dim, 1, &state);
	self->keys = normals(tokens * rope_dim, 1.5f, &state);
	return self;
}

void gpu_case_add_cross(struct gpu_case *self, uint64_t seed)
{
	const size_t count = (size_t)self->layout.content_dim * self->layout.rope_dim;

	self->constants.cross_feedback = normals(count, 0.05f, &seed);
	self->device_constants.cross_feedback =
		device_copy(self->constants.cross_feedback, count * sizeof(float));
}

void gpu_case_destroy(struct gpu_case *self)
{
	free((void *)self->constants.cross_feedback);
	free((void *)self->constants.content_mean);
	free((void *)self->constants.rope_mean);
	free((void *)self->constants.content_feedback);
	free((void *)self->constants.content_weight);
	free((void *)self->constants.rope_feedback);
	free((void *)self->constants.rope_weight);
	free((void *)self->rope.inv_freq);
	free(self->pool.base);
	free(self->slots);
	free(self->content);
	free(self->keys);
	free(self);
	device_release_all();
}

void gpu_case_pack_on_cpu(struct gpu_case *self)
{
	struct qmk_pack_args args = {
		.layout = &self->layout,
		.constants = &self->constants,
		.pool = self->pool,
		.layer = LAYER,
		.pages = self->pages,
		.slots = self->slots,
		.content = self->content,
		.rope = self->keys,
		.content_stride = self->layout.content_dim,
		.rope_stride = self->layout.rope_dim,
		.dtype = QMK_F32,
	};

	args.workspace = malloc(qmk_cpu_ops.pack_workspace(&args) + 1);
	assert_int_equal(qmk_cpu_ops.pack(&args), QMLA_OK);
	free(args.workspace);
	device_write(self->device_pool.base, self->pool.base, self->pool.stride * self->pool_slots);
}
