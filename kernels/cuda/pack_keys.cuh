/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rounds the RoPE keys of half a page with feedback. They have so few coordinates that each
 * warp walks all of them with a scale of its own: the same 48 that the CPU tries, then once
 * more with the best.
 */
#ifndef QMK_CUDA_PACK_KEYS_CUH
#define QMK_CUDA_PACK_KEYS_CUH

#include "kernels/cuda/feedback_block.cuh"

#define KEY_TRIALS 48u

/* A token's best scale so far. */
struct verdict {
	float error, scale;
	uint32_t trial;
};

/* Keys on trial leave nothing but errors that a second block needs; those kept are written. */
struct key_sink {
	const plane &p;
	float *errors; /* of the block's first coordinate and this token, or NULL */
	uint8_t *page; /* NULL: on trial */
	uint32_t token, first, word;

	__device__ __forceinline__ void take(uint32_t i, uint32_t code, float error)
	{
		word |= code << (4 * (i % 8));
		if (i % 8 == 7) {
			if (page)
				*word_of(p, page, token, first + i - 7) = word;
			word = 0;
		}
		if (errors)
			errors[i * TOKENS] = error;
	}
};

/* One block of the keys, every warp with its own scales; @p errors [64][32], kept ones [d_r][32].
 */
template <int FIRST>
static __device__ __forceinline__ void walk_keys(const plane &p, const workspace &ws, float *errors,
						 uint8_t *page, uint32_t token0, walker *w)
{
	const uint32_t token = threadIdx.x % TOKENS;
	const uint32_t count = min(BLOCK, p.dim - FIRST);
	const float *values = ws.values + FIRST * TOKENS;
	key_sink sink = {p, NULL, page, token0 + token, FIRST, 0};
	float target[BLOCK];

#pragma unroll
	for (uint32_t i = 0; i < BLOCK; i++)
		target[i] = i < count ? values[i * TOKENS + token] : 0.f;
	for (int j = 0; j < FIRST; j++) {
		const float error = errors[j * TOKENS + token];

#pragma unroll
		for (uint32_t i = 0; i < BLOCK; i++)
			if (i < count)
				target[i] =
					fmaf(p.feedback[(FIRST + i) * p.dim + j], error, target[i]);
	}
	if (errors && (FIRST == 0 || page)) /* a warp on trial has room for one block */
		sink.errors = errors + FIRST * TOKENS + token;
	block_walk(p, FIRST, count, values, ws.tile, target, w, &sink);
}

/* Rounds all keys, every warp with its own scales, in step. */
static __device__ void round_keys(const plane &p, const workspace &ws, float *errors, uint8_t *page,
				  uint32_t token0, walker *w)
{
	__syncthreads();
	load_diagonal(p, 0, min(BLOCK, p.dim), ws.tile);
	__syncthreads();
	walk_keys<0>(p, ws, errors, page, token0, w);
	if (p.dim <= BLOCK)
		return;
	__syncthreads();
	load_diagonal(p, BLOCK, p.dim - BLOCK, ws.tile);
	__syncthreads();
	walk_keys<(int)BLOCK>(p, ws, errors, page, token0, w);
}

/* The trial of all warps that left a token the least; of equals the first. */
static __device__ verdict join_verdicts(const verdict &mine, float *tile)
{
	verdict *part = (verdict *)tile; /* [PARTS][32] */
	const uint32_t token = threadIdx.x % TOKENS;
	verdict best;

	__syncthreads();
	part[threadIdx.x] = mine;
	__syncthreads();
	best = part[token];
	for (uint32_t q = 1; q < PARTS; q++) {
		const verdict &v = part[q * TOKENS + token];

		if (v.error < best.error || (v.error == best.error && v.trial < best.trial))
			best = v;
	}
	return best;
}

/* The scale of each token's keys, in all its threads: of 48 that cover the largest or less. */
static __device__ float search_keys(const plane &p, const workspace &ws)
{
	const uint32_t token = threadIdx.x % TOKENS, warp = threadIdx.x / TOKENS;
	float *errors = p.dim > BLOCK ? ws.own + warp * BLOCK * TOKENS : NULL;
	verdict best = {FLT_MAX, 0.f, 0};
	float largest = 0.f, base;

	for (uint32_t i = warp; i < p.dim; i += PARTS)
		largest = fmaxf(largest, fabsf(ws.values[i * TOKENS + token]));
	base = join_parts(largest, true) / 7.5f;
	for (uint32_t trial = warp; trial < KEY_TRIALS; trial += PARTS) {
		walker w;

		w.begin(p.bits, base * (0.55f + 0.0125f * (float)trial));
		round_keys(p, ws, errors, NULL, 0, &w);
		if (w.judged < best.error)
			best = {w.judged, w.scale, trial};
	}
	return join_verdicts(best, ws.tile).scale;
}

/* The keys' plane of tokens token0 … token0 + 31; what the codes leave goes to the remainder. */
template <class Rows>
static __device__ void pack_keys(const pack_params &params, const Rows &rows, uint8_t *page,
				 uint32_t token0, const workspace &ws)
{
	const plane &p = params.planes[1];
	const uint32_t token = threadIdx.x % TOKENS, warp = threadIdx.x / TOKENS;
	walker w;

	load_plane(p, rows, token0, ws.values);
	__syncthreads();
	if (!p.feedback) {
		pack_values(p, page, token0, ws.values);
		__syncthreads();
		for (uint32_t i = warp; i < p.dim; i += PARTS)
			ws.remainder[i * TOKENS + token] = ws.values[i * TOKENS + token];
		return;
	}
	w.begin(p.bits, search_keys(p, ws));
	/* The first warp writes; the others, in step, leave their errors where trials did. */
	round_keys(p, ws,
		   warp == 0       ? ws.remainder
		   : p.dim > BLOCK ? ws.own + warp * BLOCK * TOKENS
				   : NULL,
		   warp == 0 ? page : NULL, token0, &w);
	if (warp == 0)
		store_scale(p, w.scale, page, token0 + token);
}

#endif /* QMK_CUDA_PACK_KEYS_CUH */
