/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rounds the RoPE keys of 8 tokens with feedback. They have so few coordinates that each warp
 * walks all of them, each of its threads a token with a scale of its own: the same 48 that the
 * CPU tries, then once more with the best.
 */
#ifndef QMK_CUDA_PACK_KEYS_CUH
#define QMK_CUDA_PACK_KEYS_CUH

#include "kernels/cuda/feedback_block.cuh"

#define KEY_TRIALS 48u

/* A scale on trial. */
struct verdict {
	float error, scale;
	uint32_t trial;
};

/* Keys on trial leave nothing but errors that a second block needs; those kept are written. */
struct key_sink {
	const plane &p;
	float *errors; /* of the block's first coordinate and this column, or NULL */
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

/* One block of the keys by every warp; @p errors [64][32], of keys to be kept [d_r][32]. */
template <int FIRST>
static __device__ __forceinline__ void walk_keys(const plane &p, const workspace &ws, float *errors,
						 bool keep, const slice &to, walker *w)
{
	const uint32_t column = threadIdx.x % TOKENS;
	const uint32_t count = min(BLOCK, p.dim - FIRST);
	const float *values = ws.values + FIRST * TOKENS;
	key_sink sink = {p, NULL, keep ? to.page : NULL, to.token(), FIRST, 0};
	float target[BLOCK];

#pragma unroll
	for (uint32_t i = 0; i < BLOCK; i++)
		target[i] = i < count ? values[i * TOKENS + column] : 0.f;
	for (int j = 0; j < FIRST; j++) {
		const float error = errors[j * TOKENS + column];

#pragma unroll
		for (uint32_t i = 0; i < BLOCK; i++)
			if (i < count)
				target[i] =
					fmaf(p.feedback[(FIRST + i) * p.dim + j], error, target[i]);
	}
	if (errors && (FIRST == 0 || keep)) /* a warp on trial has room for one block */
		sink.errors = errors + FIRST * TOKENS + column;
	block_walk(p, FIRST, count, values, ws.tile, target, w, &sink);
}

/* Rounds all keys, every warp with its own scales, in step. */
static __device__ void round_keys(const plane &p, const workspace &ws, float *errors, bool keep,
				  const slice &to, walker *w)
{
	__syncthreads();
	load_diagonal(p, 0, min(BLOCK, p.dim), ws.tile);
	__syncthreads();
	walk_keys<0>(p, ws, errors, keep, to, w);
	if (p.dim <= BLOCK)
		return;
	__syncthreads();
	load_diagonal(p, BLOCK, p.dim - BLOCK, ws.tile);
	__syncthreads();
	walk_keys<(int)BLOCK>(p, ws, errors, keep, to, w);
}

/* Of all threads of a token the trial that left the least; of equals the first. */
static __device__ verdict join_verdicts(const verdict &mine, float *tile)
{
	verdict *part = (verdict *)tile; /* [32 PARTS / 8][8] */
	verdict best;

	__syncthreads();
	part[threadIdx.x] = mine;
	__syncthreads();
	best = part[threadIdx.x % SLICE];
	for (uint32_t q = 1; q < THREADS / SLICE; q++) {
		const verdict &v = part[q * SLICE + threadIdx.x % SLICE];

		if (v.error < best.error || (v.error == best.error && v.trial < best.trial))
			best = v;
	}
	return best;
}

/* A warp's errors of the first block where there are two. */
static __device__ __forceinline__ float *own_errors(const plane &p, const workspace &ws)
{
	return p.dim > BLOCK ? ws.own + threadIdx.x / TOKENS * BLOCK * TOKENS : NULL;
}

/* The scale of each token's keys, in all its threads: of 48 that cover the largest or less. */
static __device__ float search_keys(const plane &p, const slice &to, const workspace &ws)
{
	const uint32_t column = threadIdx.x % TOKENS;
	verdict best = {FLT_MAX, 0.f, KEY_TRIALS};
	float largest = 0.f, base;

	for (uint32_t i = threadIdx.x / TOKENS; i < p.dim; i += PARTS)
		largest = fmaxf(largest, fabsf(ws.values[i * TOKENS + column]));
	base = join_parts(largest, true) / 7.5f;
	/* Every thread as often, since they meet at barriers; the last trials are of no account. */
	for (uint32_t first = 0; first < KEY_TRIALS; first += THREADS / SLICE) {
		const uint32_t trial = first + threadIdx.x / SLICE;
		walker w;

		w.begin(p.bits, base * (0.55f + 0.0125f * (float)trial));
		round_keys(p, ws, own_errors(p, ws), false, to, &w);
		if (trial < KEY_TRIALS && w.judged < best.error)
			best = {w.judged, w.scale, trial};
	}
	return join_verdicts(best, ws.tile).scale;
}

/* The keys of the slice; what their codes leave goes to the remainder. */
template <class Rows>
static __device__ void pack_keys(const pack_params &params, const Rows &rows, const slice &to,
				 const workspace &ws)
{
	const plane &p = params.planes[1];
	const uint32_t column = threadIdx.x % TOKENS, warp = threadIdx.x / TOKENS;
	walker w;

	load_plane(p, rows, to, ws.values);
	__syncthreads();
	if (!p.feedback) {
		pack_values(p, to, ws.values);
		__syncthreads();
		for (uint32_t i = warp; i < p.dim; i += PARTS)
			ws.remainder[i * TOKENS + column] = ws.values[i * TOKENS + column];
		return;
	}
	w.begin(p.bits, search_keys(p, to, ws));
	/* The first warp writes; the others, in step, leave their errors where trials did. */
	round_keys(p, ws, warp == 0 ? ws.remainder : own_errors(p, ws), warp == 0, to, &w);
	store_scale(p, w.scale, to);
}

#endif /* QMK_CUDA_PACK_KEYS_CUH */
