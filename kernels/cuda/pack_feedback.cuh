/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rounds 8 tokens of a page with feedback, by one CTA: the RoPE keys first, then the content,
 * whose targets take back what the keys' codes left (docs/format.md, 5).
 *
 * A scale is judged by rounding with it; the one that leaves the least weighted error stays.
 * Content is rounded with four a token at once, fewer than the CPU tries: what that costs is
 * in docs/kernels.md.
 */
#ifndef QMK_CUDA_PACK_FEEDBACK_CUH
#define QMK_CUDA_PACK_FEEDBACK_CUH

#include "kernels/cuda/pack_keys.cuh"

/* Content: errors in place of the values; the codes follow from them (write_content). */
struct content_sink {
	float *values; /* of the block's first coordinate and this column */

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

/* Targets of the content's coordinates from @p first on, as far as @p known errors go. */
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

/* Rounds the content with the scales that the first warp's threads bring. */
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
 * Root mean square of the content's targets before feedback, a column's in each of its
 * threads; with @p replace the targets take the place of the values.
 */
static __device__ float content_rms(const pack_params &params, const workspace &ws, bool replace)
{
	const plane &p = params.planes[0];
	const uint32_t column = threadIdx.x % TOKENS;
	float squares = 0.f;

	for (uint32_t first = 0; first < p.dim; first += BLOCK) {
		const uint32_t count = min(BLOCK, p.dim - first);
		target_part part;

		content_targets(params, first, count, 0, ws, &part);
		part.store(ws.targets);
		__syncthreads();
		for (uint32_t i = threadIdx.x / TOKENS; i < count; i += PARTS) {
			const float target = ws.targets[i * TOKENS + column];

			squares = fmaf(target, target, squares);
			if (replace)
				ws.values[(first + i) * TOKENS + column] = target;
		}
		__syncthreads();
	}
	return sqrtf(join_parts(squares, false) / (float)p.dim);
}

/* Scale over root mean square that a column is rounded with, ascending. */
static __device__ __forceinline__ float content_ratio(uint32_t bits, uint32_t trial)
{
	const float four[TRIALS] = {0.26f, 0.32f, 0.38f, 0.55f};
	const float two[TRIALS] = {0.95f, 1.25f, 1.5f, 1.8f};

	return bits == 2 ? two[trial] : four[trial];
}

/* This thread's token's column with the least error, the first of equals or where none is a number.
 */
static __device__ __forceinline__ uint32_t best_column(const float *judged)
{
	const uint32_t token = threadIdx.x % SLICE;
	uint32_t best = token;
	float least = judged[token] < FLT_MAX ? judged[token] : FLT_MAX;

	for (uint32_t column = token + SLICE; column < TOKENS; column += SLICE) {
		if (judged[column] < least) {
			least = judged[column];
			best = column;
		}
	}
	return best;
}

/*
 * Writes a token's codes, those of one column, by its 32 threads. A code is what the value less
 * its error stands for: an error is far below 2^23 scales, as a scale is at least a quarter of
 * the root mean square, so that nothing is lost.
 */
template <class Rows>
static __device__ void write_content(const plane &p, const Rows &rows, const slice &to, float scale,
				     const float *errors)
{
	const uint32_t fields = 32 / p.bits;
	const float half = (float)(1u << (p.bits - 1)), inverse = scale > 0.f ? 1.f / scale : 0.f;

	for (uint32_t i = threadIdx.x / SLICE * fields; i < p.dim; i += THREADS / SLICE * fields) {
		uint32_t word = 0;

		for (uint32_t f = 0; f < fields; f++) {
			const float value = sane(rows.value(p, to.token(), i + f));
			const float restored = value - errors[(i + f) * TOKENS];
			const float code = fmaf(restored, inverse, half - 0.5f);

			word |= (uint32_t)rintf(fminf(fmaxf(code, 0.f), 2.f * half - 1.f))
				<< (p.bits * f);
		}
		*word_of(p, to.page, to.token(), i) = word;
	}
}

/* The content of the slice; the keys' errors lie in the remainder. */
template <class Rows>
static __device__ void pack_content(const pack_params &params, const Rows &rows, const slice &to,
				    const workspace &ws)
{
	const plane &p = params.planes[0];
	uint32_t best;
	float base, scale;
	walker w;

	load_plane(p, rows, to, ws.values);
	__syncthreads();
	base = content_rms(params, ws, !p.feedback);
	if (!p.feedback) {
		pack_values(p, to, ws.values);
		return;
	}
	w.begin(p.bits, base * content_ratio(p.bits, threadIdx.x % TOKENS / SLICE));
	round_content(params, ws, &w);
	if (threadIdx.x < TOKENS)
		ws.targets[threadIdx.x] = w.judged;
	__syncthreads();
	best = best_column(ws.targets);
	scale = stored_scale(base * content_ratio(p.bits, best / SLICE));
	write_content(p, rows, to, scale, ws.values + best);
	store_scale(p, scale, to);
}

/* Both planes of the slice, by the whole CTA. */
template <class Rows>
static __device__ void pack_slice(const pack_params &params, const Rows &rows, const slice &to,
				  uint8_t *raw)
{
	const workspace ws = place(raw, params.layout);

	pack_keys(params, rows, to, ws);
	__syncthreads();
	pack_content(params, rows, to, ws);
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

/*
 * Lets a kernel that packs planes have what the device can give: the same in every call, since
 * the limit is the kernel's and other threads launch it too. QMLA_ERR_UNSUPPORTED where
 * @p bytes are more than that.
 */
template <class Params>
static inline qmla_status_t pack_prepare(void (*kernel)(Params), size_t bytes)
{
	const int fixed = PARTS * TOKENS * sizeof(float); /* join_parts */
	int device, limit;
	cudaError_t error = cudaGetDevice(&device);

	if (error == cudaSuccess)
		error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin,
					       device);
	if (error == cudaSuccess && bytes + fixed > (size_t)limit)
		return QMLA_ERR_UNSUPPORTED;
	if (error == cudaSuccess)
		error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
					     limit - fixed);
	return qmk_cuda_status(error);
}

#endif /* QMK_CUDA_PACK_FEEDBACK_CUH */
