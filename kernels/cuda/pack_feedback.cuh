/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rounds half a page with feedback, by one CTA: the RoPE keys first, then the content, whose
 * targets take back what the keys' codes left (docs/format.md, 5).
 *
 * Scales are searched by rounding with each of a few; the one that leaves the least
 * weighted error stays. Content is walked once for each of content_ratio, fewer than on the
 * CPU: what that costs is in docs/kernels.md.
 */
#ifndef QMK_CUDA_PACK_FEEDBACK_CUH
#define QMK_CUDA_PACK_FEEDBACK_CUH

#include "kernels/cuda/pack_keys.cuh"

#define CONTENT_RATIOS 4

/* Content: errors in place of the values; the codes follow from them (accept_content). */
struct content_sink {
	float *values; /* of the block's first coordinate and this token */

	__device__ __forceinline__ void take(uint32_t i, uint32_t, float error)
	{
		values[i * TOKENS] = error;
	}
};

static __device__ void walk_content(const plane &p, uint32_t first, uint32_t count,
				    const workspace &ws, walker *w)
{
	float *values = ws.values + first * TOKENS;
	content_sink sink = {values + threadIdx.x};
	float target[BLOCK];

#pragma unroll
	for (uint32_t i = 0; i < BLOCK; i++)
		target[i] = ws.targets[i * TOKENS + threadIdx.x];
	block_walk(p, first, count, values, ws.tile, target, w, &sink);
}

/* Targets of the content's coordinates from @p first on, without the errors of their block. */
static __device__ __forceinline__ void content_targets(const pack_params &params, uint32_t first,
						       uint32_t count, uint32_t known,
						       const workspace &ws, target_part *part)
{
	const plane &p = params.planes[0];
	const factor cross = {params.cross, params.planes[1].dim, first, count};
	const factor own = {p.feedback, p.dim, first, count};

	part->start(ws.values, first, count);
	if (params.cross)
		add_product(cross, ws.remainder, params.planes[1].dim, ws.tile, part);
	add_product(own, ws.values, known, ws.tile, part);
}

/* One rounding of the content with the scales that the first warp's threads bring. */
static __device__ void round_content(const pack_params &params, const workspace &ws, walker *w)
{
	const plane &p = params.planes[0];

	for (uint32_t first = 0; first < p.dim; first += BLOCK) {
		const uint32_t count = min(BLOCK, p.dim - first);
		target_part part;

		content_targets(params, first, count, first, ws, &part);
		part.store(ws.targets);
		__syncthreads();
		load_diagonal(p, first, count, ws.tile);
		__syncthreads();
		if (threadIdx.x < TOKENS)
			walk_content(p, first, count, ws, w);
		__syncthreads();
	}
}

/*
 * Root mean square of the content's targets before feedback, a token's in each of its
 * threads; with @p replace the targets take the place of the values.
 */
static __device__ float content_rms(const pack_params &params, const workspace &ws, bool replace)
{
	const plane &p = params.planes[0];
	const uint32_t token = threadIdx.x % TOKENS;
	float squares = 0.f;

	for (uint32_t first = 0; first < p.dim; first += BLOCK) {
		const uint32_t count = min(BLOCK, p.dim - first);
		target_part part;

		content_targets(params, first, count, 0, ws, &part);
		part.store(ws.targets);
		__syncthreads();
		for (uint32_t i = threadIdx.x / TOKENS; i < count; i += PARTS) {
			const float target = ws.targets[i * TOKENS + token];

			squares = fmaf(target, target, squares);
			if (replace)
				ws.values[(first + i) * TOKENS + token] = target;
		}
		__syncthreads();
	}
	return sqrtf(join_parts(squares, false) / (float)p.dim);
}

/* Scales over the root mean square that content is rounded with. */
static __device__ __forceinline__ float content_ratio(uint32_t bits, int trial)
{
	const float four[CONTENT_RATIOS] = {0.26f, 0.32f, 0.38f, 0.55f};
	const float two[CONTENT_RATIOS] = {1.25f, 1.5f, 1.8f, 0.95f};

	return bits == 2 ? two[trial] : four[trial];
}

/*
 * Writes the codes of the trial that just ended, of tokens with a scale in accepted [32], else
 * -1. A code is what its value less its error stands for: an error is far below 2^23 scales,
 * as a scale is at least a quarter of the root mean square, so that nothing is lost.
 */
template <class Rows>
static __device__ void accept_content(const plane &p, const Rows &rows, const float *accepted,
				      uint8_t *page, uint32_t token0, const float *errors)
{
	const uint32_t token = threadIdx.x % TOKENS, fields = 32 / p.bits;
	const float scale = accepted[token], half = (float)(1u << (p.bits - 1));
	const float inverse = scale > 0.f ? 1.f / scale : 0.f;

	if (scale < 0.f)
		return;
	for (uint32_t i = threadIdx.x / TOKENS * fields; i < p.dim; i += PARTS * fields) {
		uint32_t word = 0;

		for (uint32_t f = 0; f < fields; f++) {
			const float value = sane(rows.value(p, token0 + token, i + f));
			const float restored = value - errors[(i + f) * TOKENS + token];
			const float code = fmaf(restored, inverse, half - 0.5f);

			word |= (uint32_t)rintf(fminf(fmaxf(code, 0.f), 2.f * half - 1.f))
				<< (p.bits * f);
		}
		*word_of(p, page, token0 + token, i) = word;
	}
}

/* The content's plane of tokens token0 … token0 + 31; the keys' errors lie in the remainder. */
template <class Rows>
static __device__ void pack_content(const pack_params &params, const Rows &rows, uint8_t *page,
				    uint32_t token0, const workspace &ws)
{
	const plane &p = params.planes[0];
	float least = FLT_MAX, scale = 0.f;
	float base;

	load_plane(p, rows, token0, ws.values);
	__syncthreads();
	base = content_rms(params, ws, !p.feedback);
	if (!p.feedback) {
		pack_values(p, page, token0, ws.values);
		return;
	}
	for (int trial = 0; trial < CONTENT_RATIOS; trial++) {
		walker w;
		bool better;

		if (trial > 0)
			load_plane(p, rows, token0, ws.values);
		__syncthreads();
		w.begin(p.bits, base * content_ratio(p.bits, trial));
		round_content(params, ws, &w);
		/* The first stands until a better one comes, were its error no number. */
		better = w.judged < least || trial == 0;
		if (threadIdx.x < TOKENS) {
			ws.targets[threadIdx.x] = better ? w.scale : -1.f;
			least = better ? w.judged : least;
			scale = better ? w.scale : scale;
		}
		__syncthreads();
		accept_content(p, rows, ws.targets, page, token0, ws.values);
		__syncthreads();
	}
	if (threadIdx.x < TOKENS)
		store_scale(p, scale, page, token0 + threadIdx.x);
}

/* Both planes of tokens token0 … token0 + 31 into @p page, by the whole CTA. */
template <class Rows>
static __device__ void pack_half(const pack_params &params, const Rows &rows, uint8_t *page,
				 uint32_t token0, uint8_t *raw)
{
	const workspace ws = place(raw, params.layout);

	pack_keys(params, rows, page, token0, ws);
	__syncthreads();
	pack_content(params, rows, page, token0, ws);
}

static inline bool wants_feedback(const pack_params &params)
{
	return params.planes[0].feedback || params.planes[1].feedback || params.cross;
}

/* Dynamic shared memory of a kernel that packs planes. */
static inline size_t pack_shared_bytes(const pack_params &params)
{
	const qmk_layout &layout = params.layout;
	const uint32_t dim =
		layout.content_dim > layout.rope_dim ? layout.content_dim : layout.rope_dim;

	if (layout.format == QMK_FORMAT_PAPER_C4R4)
		return 0;
	return wants_feedback(params) ? feedback_bytes(layout) : dim * TOKENS * sizeof(float);
}

#endif /* QMK_CUDA_PACK_FEEDBACK_CUH */
