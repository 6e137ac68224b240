/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What the kernels that write pages share, and plain rounding of one plane (content or RoPE
 * keys) of half a page by one CTA.
 *
 * The plane lies in shared memory coordinate by coordinate, 32 tokens each, so that
 * neighbouring threads are neighbouring tokens. A token's scale is searched by its 8
 * threads together. Rounding with feedback is in pack_feedback.cuh.
 */
#ifndef QMK_CUDA_PACK_PLANE_CUH
#define QMK_CUDA_PACK_PLANE_CUH

#include <float.h>

#include "kernels/cuda/device.cuh"

#define THREADS    256
#define TOKENS     32u                /* a warp: half a page */
#define PARTS      (THREADS / TOKENS) /* threads that share a token */
#define CANDIDATES 11
#define FP16_MAX   65504.f

/* One plane as the kernel sees it. */
struct plane {
	const void *source;
	uint64_t stride;
	uint32_t dim, bits;
	const float *mean, *feedback, *weight;
	uint32_t codes_offset, row_bytes, scales_offset;
	uint32_t column; /* of the plane in a tail's row */
};

/* What every kernel that writes pages takes. */
struct pack_params {
	qmk_layout layout;
	qmk_pool pool;
	const uint32_t *slots;
	uint32_t layer;
	qmk_dtype dtype;
	const float *cross; /* [d_c][d_r], or NULL */
	plane planes[2];    /* content, keys */
};

/* Rows of whole pages, one after another. */
struct page_rows {
	uint64_t first_row;
	qmk_dtype dtype;

	/* Coordinate @p i of the page's token @p token, less the mean. */
	__device__ __forceinline__ float value(const plane &p, uint32_t token, uint32_t i) const
	{
		const float value = qmk_load(p.source, (first_row + token) * p.stride + i, dtype);

		return p.mean ? value - p.mean[i] : value;
	}
};

/*
 * What a CTA writes: tokens of a page, one for each of its 32 columns in shared memory. With
 * fewer tokens than columns they come around again.
 */
struct slice {
	uint8_t *page;
	uint32_t first, tokens;

	__device__ __forceinline__ uint32_t token() const
	{
		return first + threadIdx.x % TOKENS % tokens;
	}
};

/* A value as the quantiser takes it: NaN is 0, magnitudes end at fp16's largest. */
static __device__ __forceinline__ float sane(float value)
{
	return value == value ? fminf(fmaxf(value, -FP16_MAX), FP16_MAX) : 0.f;
}

/* Values of the slice, [dim][32]. */
template <class Rows>
static __device__ void load_plane(const plane &p, const Rows &rows, const slice &to, float *values)
{
	const uint32_t column = threadIdx.x % TOKENS;

	for (uint32_t i = threadIdx.x / TOKENS * 8; i < p.dim; i += PARTS * 8) {
#pragma unroll
		for (uint32_t j = 0; j < 8; j++)
			values[(i + j) * TOKENS + column] = sane(rows.value(p, to.token(), i + j));
	}
}

/* Sum (or maximum) over the threads of a token, in a fixed order. */
static __device__ float join_parts(float value, bool maximum)
{
	static __shared__ float part[PARTS][TOKENS];
	const uint32_t token = threadIdx.x % TOKENS;
	float joined;

	__syncthreads();
	part[threadIdx.x / TOKENS][token] = value;
	__syncthreads();
	joined = part[0][token];
	for (uint32_t q = 1; q < PARTS; q++)
		joined = maximum ? fmaxf(joined, part[q][token]) : joined + part[q][token];
	return joined;
}

/* Rounds @p target; @p restored is the value that the code stands for. */
static __device__ __forceinline__ uint32_t round_to_code(float target, float inverse, float scale,
							 float half, float *restored)
{
	float scaled = fmaf(target, inverse, half);
	int code = (int)fminf(fmaxf(scaled, 0.f), 2.f * half - 1.f); /* NaN ends as 0 */

	*restored = ((float)code + (0.5f - half)) * scale;
	return (uint32_t)code;
}

static __device__ __forceinline__ float stored_scale(float wanted)
{
	return __half2float(__float2half_rn(fminf(wanted, FP16_MAX)));
}

/* Weighted errors of plain rounding with each of COUNT scales, over the whole token. */
template <int COUNT>
static __device__ __forceinline__ void plain_errors(const plane &p, const float *values,
						    const float (&scale)[COUNT],
						    float (&error)[COUNT])
{
	const uint32_t token = threadIdx.x % TOKENS;
	const uint32_t first = threadIdx.x / TOKENS * (p.dim / PARTS);
	const uint32_t last = first + p.dim / PARTS;
	const float half = (float)(1u << (p.bits - 1));
	float inverse[COUNT];

#pragma unroll
	for (int c = 0; c < COUNT; c++) {
		inverse[c] = scale[c] > 0.f ? 1.f / scale[c] : 0.f;
		error[c] = 0.f;
	}
	for (uint32_t i = first; i < last; i++) {
		float v = values[i * TOKENS + token];
		float weight = p.weight ? p.weight[i] : 1.f;

#pragma unroll
		for (int c = 0; c < COUNT; c++) {
			float restored;
			float miss;

			round_to_code(v, inverse[c], scale[c], half, &restored);
			miss = v - restored;
			error[c] = fmaf(weight, miss * miss, error[c]);
		}
	}
#pragma unroll
	for (int c = 0; c < COUNT; c++)
		error[c] = join_parts(error[c], false);
}

/*
 * The scale of this thread's token, as kernels/cpu/quantise.c searches it for plain rounding:
 * a grid of ratios, then half a step to both sides of its best.
 */
static __device__ float search_scale(const plane &p, const float *values)
{
	const uint32_t token = threadIdx.x % TOKENS;
	const uint32_t first = threadIdx.x / TOKENS * (p.dim / PARTS);
	const float lowest = p.bits == 4 ? 0.6f : 0.5f, step = p.bits == 4 ? 0.14f : 0.15f;
	float scale[CANDIDATES], error[CANDIDATES], near_scale[2], near_error[2];
	float largest = 0.f, squares = 0.f;
	float base, best = FLT_MAX, chosen = 0.f, ratio = 0.f;

	for (uint32_t i = first; i < first + p.dim / PARTS; i++) {
		float v = values[i * TOKENS + token];

		largest = fmaxf(largest, fabsf(v));
		squares = fmaf(v, v, squares);
	}
	largest = join_parts(largest, true);
	squares = join_parts(squares, false);
	base = p.bits == 4 ? largest / 7.5f : sqrtf(squares / (float)p.dim);
#pragma unroll
	for (int c = 0; c < CANDIDATES; c++)
		scale[c] = stored_scale(base * (lowest + step * (float)c));
	plain_errors(p, values, scale, error);
#pragma unroll
	for (int c = 0; c < CANDIDATES; c++)
		if (error[c] < best) {
			best = error[c];
			chosen = scale[c];
			ratio = lowest + step * (float)c;
		}
#pragma unroll
	for (int side = 0; side < 2; side++)
		near_scale[side] =
			stored_scale(base * (ratio + (side == 0 ? -step / 2 : step / 2)));
	plain_errors(p, values, near_scale, near_error);
#pragma unroll
	for (int side = 0; side < 2; side++)
		if (near_error[side] < best) {
			best = near_error[side];
			chosen = near_scale[side];
		}
	return chosen;
}

/* Where the word that holds coordinate @i of a token goes: rows of 16-byte chunks, permuted. */
static __device__ __forceinline__ uint32_t *word_of(const plane &p, uint8_t *page, uint32_t token,
						    uint32_t i)
{
	uint32_t byte = i * p.bits / 8;
	uint32_t chunk = qmk_chunk(byte / 16, token, p.row_bytes / 16);

	return (uint32_t *)(page + p.codes_offset + token * p.row_bytes + chunk * 16 + byte % 16);
}

/* Rounds the plane's values; they become the errors that the codes leave. */
static __device__ void round_plain(const plane &p, float scale, const slice &to, float *values)
{
	const uint32_t column = threadIdx.x % TOKENS;
	const uint32_t fields = 32 / p.bits;
	const float inverse = scale > 0.f ? 1.f / scale : 0.f;
	const float half = (float)(1u << (p.bits - 1));

	for (uint32_t i = threadIdx.x / TOKENS * fields; i < p.dim; i += PARTS * fields) {
		uint32_t word = 0;

		for (uint32_t f = 0; f < fields; f++) {
			float *value = &values[(i + f) * TOKENS + column];
			float restored;

			word |= round_to_code(*value, inverse, scale, half, &restored)
				<< (p.bits * f);
			*value -= restored;
		}
		*word_of(p, to.page, to.token(), i) = word;
	}
}

/* By the threads of the first row, of which those of one token agree. */
static __device__ __forceinline__ void store_scale(const plane &p, float scale, const slice &to)
{
	if (threadIdx.x < TOKENS)
		((__half *)(to.page + p.scales_offset))[to.token()] = __float2half_rn(scale);
}

/* Values in shared memory to their page by plain rounding. */
static __device__ void pack_values(const plane &p, const slice &to, float *values)
{
	float scale;

	__syncthreads();
	scale = search_scale(p, values);
	round_plain(p, scale, to, values);
	store_scale(p, scale, to);
}

/* What every writer of pages checks; its own work list is its own matter. */
static inline qmla_status_t pack_check(const struct qmk_pack_args *args)
{
	const struct qmk_constants *c = args->constants;

	if (!args->layout || !args->content || !args->rope || !args->pool.base ||
	    args->layer >= args->layout->layers ||
	    args->content_stride < args->layout->content_dim ||
	    args->rope_stride < args->layout->rope_dim)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (c && ((uintptr_t)c->content_feedback | (uintptr_t)c->rope_feedback |
		  (uintptr_t)c->cross_feedback) %
			 16)
		return QMLA_ERR_INVALID_ARGUMENT;
	return QMLA_OK;
}

static inline plane plane_of(const struct qmk_pack_args *args, bool rope)
{
	const struct qmk_layout *layout = args->layout;
	const struct qmk_constants *c =
		layout->format == QMK_FORMAT_PAPER_C4R4 ? NULL : args->constants;
	plane p = {};

	p.source = rope ? args->rope : args->content;
	p.stride = rope ? args->rope_stride : args->content_stride;
	p.dim = rope ? layout->rope_dim : layout->content_dim;
	p.bits = rope ? layout->rope_bits : layout->content_bits;
	p.codes_offset = rope ? layout->rope_codes_offset : 0;
	p.row_bytes = rope ? layout->rope_row_bytes : layout->content_row_bytes;
	p.scales_offset = rope ? layout->rope_scales_offset : layout->content_scales_offset;
	p.column = rope ? layout->content_dim : 0;
	if (c) {
		p.mean = rope ? c->rope_mean : c->content_mean;
		p.feedback = rope ? c->rope_feedback : c->content_feedback;
		p.weight = rope ? c->rope_weight : c->content_weight;
	}
	return p;
}

static inline pack_params pack_params_of(const struct qmk_pack_args *args)
{
	pack_params params = {};

	params.layout = *args->layout;
	params.pool = args->pool;
	params.slots = args->slots;
	params.layer = args->layer;
	params.dtype = args->dtype;
	if (args->layout->format != QMK_FORMAT_PAPER_C4R4 && args->constants)
		params.cross = args->constants->cross_feedback;
	params.planes[0] = plane_of(args, false);
	params.planes[1] = plane_of(args, true);
	return params;
}

#endif /* QMK_CUDA_PACK_PLANE_CUH */
