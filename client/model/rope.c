/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/rope.h"

#include <math.h>

static double get_mscale(double factor, double mscale)
{
	return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The (real) pair whose wavelength fits the original context @p rotations times. */
static double correction_dim(const struct qmw_config *config, double rotations)
{
	return config->rope_dim * log(config->yarn.original_max_position / (rotations * 2 * M_PI)) /
	       (2 * log(config->rope_theta));
}

static void yarn_range(const struct qmw_config *config, double *low, double *high)
{
	*low = correction_dim(config, config->yarn.beta_fast);
	*high = correction_dim(config, config->yarn.beta_slow);
	if (config->yarn.truncate) {
		*low = floor(*low);
		*high = ceil(*high);
	}
	*low = fmax(*low, 0);
	*high = fmin(*high, config->rope_dim - 1);
	if (*low == *high)
		*high += 0.001; /* as transformers does: no division by zero */
}

/* Float32 steps in transformers' order, so that angles of far positions agree. */
static void apply_yarn(const struct qmw_config *config, struct qmw_rope *rope)
{
	double low, high;

	yarn_range(config, &low, &high);
	for (uint32_t j = 0; j < rope->dim / 2; j++) {
		float ramp = ((float)j - (float)low) / (float)(high - low);
		float extrapolation = rope->inv_freq[j];
		float interpolation =
			1.0f / ((float)config->yarn.factor *
				powf((float)config->rope_theta, (float)(2 * j) / (float)rope->dim));

		ramp = fminf(fmaxf(ramp, 0), 1);
		rope->inv_freq[j] = interpolation * ramp + extrapolation * (1 - ramp);
	}
}

static void apply_longrope(const struct qmw_config *config, struct qmw_rope *rope)
{
	for (uint32_t j = 0; j < rope->dim / 2; j++)
		rope->inv_freq[j] =
			1.0f / ((float)config->longrope.factor[j] *
				powf((float)config->rope_theta, (float)(2 * j) / (float)rope->dim));
	rope->amplitude = (float)config->longrope.attention_factor;
}

static double yarn_amplitude(const struct qmw_yarn *yarn)
{
	if (yarn->attention_factor > 0)
		return yarn->attention_factor;
	if (yarn->mscale > 0 && yarn->mscale_all_dim > 0)
		return get_mscale(yarn->factor, yarn->mscale) /
		       get_mscale(yarn->factor, yarn->mscale_all_dim);
	return get_mscale(yarn->factor, 1);
}

void qmw_rope_init(const struct qmw_config *config, struct qmw_rope *rope)
{
	double scale = 1 / sqrt((double)config->nope_dim + config->rope_dim);
	double mscale = 1;

	*rope = (struct qmw_rope){.dim = config->rope_dim, .amplitude = 1};
	rope->pairing = config->rope_interleave ? QMK_INTERLEAVED : QMK_HALF_SPLIT;
	for (uint32_t j = 0; j < rope->dim / 2; j++)
		rope->inv_freq[j] =
			1.0f / powf((float)config->rope_theta, (float)(2 * j) / (float)rope->dim);
	if (config->yarn.enabled) {
		apply_yarn(config, rope);
		rope->amplitude = (float)yarn_amplitude(&config->yarn);
		if (config->yarn.mscale_all_dim > 0)
			mscale = get_mscale(config->yarn.factor, config->yarn.mscale_all_dim);
	}
	if (config->longrope.enabled)
		apply_longrope(config, rope);
	rope->softmax_scale = (float)(scale * mscale * mscale);
}

void qmw_rope_angles(const struct qmw_rope *rope, uint32_t position, float *cosines, float *sines)
{
	for (uint32_t j = 0; j < rope->dim / 2; j++) {
		float angle = (float)position * rope->inv_freq[j];

		cosines[j] = cosf(angle) * rope->amplitude;
		sines[j] = sinf(angle) * rope->amplitude;
	}
}

void qmw_rope_rotate(const struct qmw_rope *rope, const float *cosines, const float *sines,
		     float *vector)
{
	for (uint32_t j = 0; j < rope->dim / 2; j++) {
		uint32_t a, b;
		float x, y;

		qmw_rope_pair(rope, j, &a, &b);
		x = vector[a];
		y = vector[b];
		vector[a] = x * cosines[j] - y * sines[j];
		vector[b] = y * cosines[j] + x * sines[j];
	}
}
