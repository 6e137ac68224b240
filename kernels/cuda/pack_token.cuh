/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Plain rounding of a plane, without feedback: a token is a warp's or a part of one, its
 * values stay in registers through all trials of scales. Codes are those of
 * kernels/cpu/quantise.c but where two scales' errors are as good as equal: sums are in
 * another order. No conversion between int and float is used: those run at a quarter of
 * the other instructions' rate.
 */
#ifndef QMK_CUDA_PACK_TOKEN_CUH
#define QMK_CUDA_PACK_TOKEN_CUH

#include "kernels/cuda/pack_plane.cuh"

#define ONE_ULP_IS_ONE 8388608.f /* 2^23 */

/* Sum (or maximum) over the @p width lanes of a token. */
static __device__ __forceinline__ float join_lanes(float value, uint32_t width, bool maximum)
{
	for (uint32_t step = width / 2; step; step /= 2) {
		const float other = __shfl_xor_sync(~0u, value, step);

		value = maximum ? fmaxf(value, other) : value + other;
	}
	return value;
}

/* The code of @p value as a float above 2^23: its last bits are the code. */
template <int BITS> static __device__ __forceinline__ float code_float(float value, float inverse)
{
	constexpr float HALF = 1 << (BITS - 1);
	const float scaled = fmaf(value, inverse, HALF);

	/* Rounded down, as the CPU truncates what is not negative. */
	return __fadd_rd(fminf(fmaxf(scaled, 0.f), 2.f * HALF - 1.f), ONE_ULP_IS_ONE);
}

/* Values of one token that a lane has: WORDS words of codes, words width apart. */
template <int BITS, int WORDS> struct token_values {
	static constexpr int FIELDS = 32 / BITS;
	float value[WORDS][FIELDS];
	float weight[WORDS]; /* 0 past the plane's end */

	/* Error of rounding with @p scale, this lane's part. */
	__device__ __forceinline__ float error(const plane &p, uint32_t first, uint32_t width,
					       float scale) const
	{
		constexpr float OFFSET = (1 << (BITS - 1)) - 0.5f;
		const float inverse = scale > 0.f ? 1.f / scale : 0.f;
		float sum = 0.f;

#pragma unroll
		for (int w = 0; w < WORDS; w++) {
			float part = 0.f;

#pragma unroll
			for (int f = 0; f < FIELDS; f++) {
				const float v = value[w][f];
				const float code = code_float<BITS>(v, inverse) - ONE_ULP_IS_ONE;
				const float miss = fmaf(OFFSET - code, scale, v);

				if (p.weight)
					part = fmaf(
						weight[w] > 0.f
							? p.weight[first + w * width * FIELDS + f]
							: 0.f,
						miss * miss, part);
				else
					part = fmaf(miss, miss, part);
			}
			sum = fmaf(weight[w], part, sum);
		}
		return sum;
	}
};

/* The scale of a token as kernels/cpu/quantise.c searches it: the grid, then beside its best. */
template <int BITS, int WORDS>
static __device__ __forceinline__ float token_scale(const plane &p, uint32_t first, uint32_t width,
						    const token_values<BITS, WORDS> &values)
{
	constexpr int FIELDS = 32 / BITS;
	const float lowest = BITS == 4 ? 0.6f : 0.5f, step = BITS == 4 ? 0.14f : 0.15f;
	float largest = 0.f, squares = 0.f, error[CANDIDATES], near_error[2], near_scale[2];
	float base, best = FLT_MAX, chosen = 0.f, ratio = 0.f;

#pragma unroll
	for (int i = 0; i < WORDS * FIELDS; i++) {
		const float v = values.value[i / FIELDS][i % FIELDS];

		largest = fmaxf(largest, fabsf(v));
		squares = fmaf(v, v, squares);
	}
	base = BITS == 4 ? join_lanes(largest, width, true) / 7.5f
			 : sqrtf(join_lanes(squares, width, false) / (float)p.dim);
#pragma unroll
	for (int c = 0; c < CANDIDATES; c++)
		error[c] = values.error(p, first, width,
					stored_scale(base * (lowest + step * (float)c)));
#pragma unroll
	for (int c = 0; c < CANDIDATES; c++) {
		const float all = join_lanes(error[c], width, false);

		if (all < best) {
			best = all;
			ratio = lowest + step * (float)c;
			chosen = stored_scale(base * ratio);
		}
	}
#pragma unroll
	for (int side = 0; side < 2; side++) {
		near_scale[side] =
			stored_scale(base * (ratio + (side == 0 ? -step / 2 : step / 2)));
		near_error[side] = values.error(p, first, width, near_scale[side]);
	}
#pragma unroll
	for (int side = 0; side < 2; side++) {
		const float all = join_lanes(near_error[side], width, false);

		if (all < best) {
			best = all;
			chosen = near_scale[side];
		}
	}
	return chosen;
}

/** One token of a plane by @p width lanes (a power of two), this one the @p lane-th. */
template <int BITS, int WORDS, class Rows>
static __device__ void pack_token_words(const plane &p, const Rows &rows, uint8_t *page,
					uint32_t token, uint32_t width, uint32_t lane)
{
	constexpr int FIELDS = 32 / BITS;
	const uint32_t first = lane * FIELDS;
	token_values<BITS, WORDS> values;
	float scale, inverse;

#pragma unroll
	for (int w = 0; w < WORDS; w++) {
		const uint32_t i = first + w * width * FIELDS;

		values.weight[w] = i < p.dim ? 1.f : 0.f;
#pragma unroll
		for (int f = 0; f < FIELDS; f += 8) {
			if (i < p.dim)
				rows.values8(p, token, i + f, &values.value[w][f]);
			else
				for (int k = 0; k < 8; k++)
					values.value[w][f + k] = 0.f;
		}
#pragma unroll
		for (int f = 0; f < FIELDS; f++)
			values.value[w][f] = sane(values.value[w][f]);
	}
	scale = token_scale(p, first, width, values);
	inverse = scale > 0.f ? 1.f / scale : 0.f;
#pragma unroll
	for (int w = 0; w < WORDS; w++) {
		const uint32_t i = first + w * width * FIELDS;
		uint32_t word = 0;

#pragma unroll
		for (int f = 0; f < FIELDS; f++)
			word |= (__float_as_uint(code_float<BITS>(values.value[w][f], inverse)) &
				 ((1u << BITS) - 1))
				<< (BITS * f);
		if (i < p.dim)
			*word_of(p, page, token, i) = word;
	}
	if (lane == 0)
		((__half *)(page + p.scales_offset))[token] = __float2half_rn(scale);
}

/* Lanes that share a token of this plane: a power of two, a word each where that is enough. */
static __device__ __forceinline__ uint32_t token_lanes(const plane &p)
{
	const uint32_t words = p.dim * p.bits / 32;

	return words <= 4 ? 4 : words <= 8 ? 8 : words <= 16 ? 16 : 32;
}

/**
 * @p tokens tokens of a plane from @p token0 on, by the CTA's warps; the whole warp comes
 * here with the same arguments. @p tokens is a multiple of 8.
 */
template <class Rows>
static __device__ void pack_tokens(const plane &p, const Rows &rows, uint8_t *page, uint32_t token0,
				   uint32_t tokens)
{
	const uint32_t width = token_lanes(p), together = 32 / width;
	const uint32_t lane = threadIdx.x % width, mine = threadIdx.x % 32 / width;

	for (uint32_t t = threadIdx.x / 32 * together; t < tokens; t += THREADS / 32 * together) {
		const uint32_t token = token0 + t + mine;

		if (p.bits == 2 && p.dim <= 512)
			pack_token_words<2, 1>(p, rows, page, token, width, lane);
		else if (p.bits == 2)
			pack_token_words<2, 2>(p, rows, page, token, width, lane);
		else if (p.dim <= 256)
			pack_token_words<4, 1>(p, rows, page, token, width, lane);
		else if (p.dim <= 512)
			pack_token_words<4, 2>(p, rows, page, token, width, lane);
		else
			pack_token_words<4, 4>(p, rows, page, token, width, lane);
	}
}

#endif /* QMK_CUDA_PACK_TOKEN_CUH */
