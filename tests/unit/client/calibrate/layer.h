/* SPDX-License-Identifier: Apache-2.0 */
/** @file A small random attention sub-layer for the tests, and its output by plain loops. */
#ifndef QMW_TEST_LAYER_H
#define QMW_TEST_LAYER_H

#include "client/calibrate/attention.h"
#include "client/calibrate/attention64.h"

struct layer_shape {
	uint32_t tokens, heads, hidden, q_rank, content_dim, rope_dim, nope_dim, value_dim;
	bool interleaved, yarn, bias;
};

struct layer {
	struct qmw_config config;
	struct qmw_rope rope;
	struct qmw_attention_weights64 weights;
	struct qmw_attention_weights single; /**< the same numbers, rounded */
	uint32_t n;
	double *input; /**< [n][hidden] */
	float *single_input;
};

/** Uniform in [-1, 1). */
double layer_random(uint64_t *seed);
/** @p count of them times @p size, malloc'ed. */
double *layer_random_rows(uint64_t *seed, size_t count, double size);
float *layer_to_float(const double *values, size_t count);

void layer_make(const struct layer_shape *shape, uint64_t seed, struct layer *layer);
void layer_free(struct layer *layer);

/**
 * Y [n][hidden] by the formulas, a scalar at a time. @p content [n][d_c], @p key [n][d_r]
 * before the rotation; NULL: the layer's own. @p near as in attention.h, NULL: none.
 */
void layer_reference(const struct layer *layer, const double *content, const double *key,
		     const struct qmw_near64 *near, double *output);

/** Rotated queries of one token and head, [d_n + d_r]. */
void layer_query(const struct layer *layer, uint32_t token, uint32_t head, double *query);
/** The layer's own u and k of one token. */
void layer_rows(const struct layer *layer, uint32_t token, double *content, double *key);
void layer_rotate(const struct layer *layer, uint32_t token, double *vector);

#endif /* QMW_TEST_LAYER_H */
