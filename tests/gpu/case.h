/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One random case for the parity tests: a layout, constants, values, a pool whose
 * unused bytes are garbage, and the same on the device.
 */
#ifndef TESTS_GPU_CASE_H
#define TESTS_GPU_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"

struct gpu_case {
	struct qmk_layout layout;
	struct qmk_constants constants; /* host */
	struct qmk_constants device_constants;
	struct qmk_rope rope;
	struct qmk_rope device_rope;
	uint32_t pages;
	uint32_t *slots;
	uint32_t *device_slots;
	struct qmk_pool pool;
	struct qmk_pool device_pool;
	uint32_t pool_slots;
	float *content; /* [pages * 64][d_c], before the mean is taken */
	float *keys;    /* [pages * 64][d_r] */
};

/** Small repeatable generator: uniform in [0, 1) and normal. */
double gpu_uniform(uint64_t *state);
float gpu_normal(uint64_t *state);

struct gpu_case *gpu_case_create(enum qmk_format format, uint32_t content_dim, uint32_t rope_dim,
				 uint32_t pages, bool feedback, enum qmk_pairing pairing,
				 uint64_t seed);
/** Adds cross feedback to the constants of a case made with feedback. */
void gpu_case_add_cross(struct gpu_case *self, uint64_t seed);

void gpu_case_destroy(struct gpu_case *self);

/** Packs on the CPU and copies the pool to the device. */
void gpu_case_pack_on_cpu(struct gpu_case *self);

#endif /* TESTS_GPU_CASE_H */
