/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Quantise and pack one plane (content or RoPE keys) of half a page by one CTA.
 *
 * The plane lies in shared memory coordinate by coordinate, 32 tokens each, so that
 * neighbouring threads are neighbouring tokens. Scales are searched by plain weighted
 * rounding; feedback rounding then runs in blocks of 64 coordinates: targets from all
 * earlier errors by a matrix product, then one thread a token walks the
 * block with its targets in registers. Sums run over j ascending with fused
 * multiply-adds, as in kernels/cpu/quantise.c: the codes are the same.
 *
 * Shared memory at d_c = 512: values, later errors 65,536 B, targets 8,192 B, a tile of A
 * 17,408 B: two CTAs share an H200's multiprocessor, and one fits sm_86.
 */
#ifndef QMK_CUDA_PACK_PLANE_CUH
#define QMK_CUDA_PACK_PLANE_CUH

#include <float.h>

#include "kernels/cuda/device.cuh"

#define THREADS    256
#define TOKENS     32u                /* a warp: half a page */
#define PARTS      (THREADS / TOKENS) /* threads that share a token */
#define CANDIDATES 11
#define BLOCK      64u
#define TILE_PITCH 68 /* floats: rows of the A tile start 16-byte aligned, in other banks */
#define FP16_MAX   65504.f

/* One plane as the kernel sees it. */
struct plane {
	const void *source;
	uint64_t stride;
	uint32_t dim, bits;
	const float *mean, *feedback, *weight;
	uint32_t codes_offset, row_bytes, scales_offset;
};

/* What every kernel that writes pages takes. */
struct pack_params {
	qmk_layout layout;
	qmk_pool pool;
	const uint32_t *slots;
	uint32_t layer;
	qmk_dtype dtype;
	plane planes[2];
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

struct workspace {
	float *values;  /* [dim][32], overwritten by errors */
	float *targets; /* [64][32] */
	float *tile;    /* [64][TILE_PITCH] of A, or its diagonal block transposed */
};

/* A value as the quantiser takes it: NaN is 0, magnitudes end at fp16's largest. */
static __device__ __forceinline__ float sane(float value)
{
	return value == value ? fminf(fmaxf(value, -FP16_MAX), FP16_MAX) : 0.f;
}

/* Values of tokens token0 … token0 + 31 of a page. */
template <class Rows>
static __device__ void load_plane(const plane &p, const Rows &rows, uint32_t token0, float *values)
{
	const uint32_t token = threadIdx.x % TOKENS;

	for (uint32_t i = threadIdx.x / TOKENS * 8; i < p.dim; i += PARTS * 8) {
#pragma unroll
		for (uint32_t j = 0; j < 8; j++)
			values[(i + j) * TOKENS + token] =
				sane(rows.value(p, token0 + token, i + j));
	}
}

/* Sum (or maximum) over the threads of a token, in a fixed order. */
static __device__ float join_parts(float value, bool maximum)
{
	__shared__ float part[PARTS][TOKENS];
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
 * The scale of this thread's token, as kernels/cpu/quantise.c searches it: a grid of
 * ratios, then half a step to both sides of its best. With feedback the grid is the CPU's
 * cut one, but judged by plain rounding: seven trials by feedback would take seven times
 * as long (docs/measurements/attention.md).
 */
static __device__ float search_scale(const plane &p, const float *values)
{
	const uint32_t token = threadIdx.x % TOKENS;
	const uint32_t first = threadIdx.x / TOKENS * (p.dim / PARTS);
	const float lowest = p.bits == 4 ? 0.6f : 0.5f, step = p.bits == 4 ? 0.14f : 0.15f;
	const int from = p.feedback && p.bits == 2 ? 3 : 0;
	const int to = !p.feedback ? 10 : p.bits == 2 ? 8 : 4;
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
		if (c >= from && c <= to && error[c] < best) {
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

static __device__ void round_plain(const plane &p, float scale, uint8_t *page, uint32_t token0,
				   const workspace &ws)
{
	const uint32_t token = threadIdx.x % TOKENS;
	const uint32_t fields = 32 / p.bits;
	const float inverse = scale > 0.f ? 1.f / scale : 0.f;
	const float half = (float)(1u << (p.bits - 1));

	for (uint32_t i = threadIdx.x / TOKENS * fields; i < p.dim; i += PARTS * fields) {
		uint32_t word = 0;

		for (uint32_t f = 0; f < fields; f++) {
			float restored;

			word |= round_to_code(ws.values[(i + f) * TOKENS + token], inverse, scale,
					      half, &restored)
				<< (p.bits * f);
		}
		*word_of(p, page, token0 + token, i) = word;
	}
}

/* Targets of coordinates [first, first + 64) as far as the errors before them go. */
static __device__ void block_targets(const plane &p, uint32_t first, uint32_t count,
				     const workspace &ws)
{
	const uint32_t row0 = threadIdx.x / 16 * 4;
	const uint32_t token0 = threadIdx.x % 16 * 2;
	float sum[4][2];

	for (int r = 0; r < 4; r++)
		for (int t = 0; t < 2; t++)
			sum[r][t] = row0 + r < count
					    ? ws.values[(first + row0 + r) * TOKENS + token0 + t]
					    : 0.f;
	for (uint32_t known = 0; known < first; known += BLOCK) {
		__syncthreads();
		for (uint32_t i = threadIdx.x; i < BLOCK * BLOCK; i += THREADS)
			ws.tile[i / BLOCK * TILE_PITCH + i % BLOCK] =
				i / BLOCK < count
					? p.feedback[(uint64_t)(first + i / BLOCK) * p.dim + known +
						     i % BLOCK]
					: 0.f;
		__syncthreads();
#pragma unroll 4
		for (uint32_t j = 0; j < BLOCK; j++) {
			float2 e = *(const float2 *)&ws.values[(known + j) * TOKENS + token0];

#pragma unroll
			for (int r = 0; r < 4; r++) {
				float a = ws.tile[(row0 + r) * TILE_PITCH + j];

				sum[r][0] = fmaf(a, e.x, sum[r][0]);
				sum[r][1] = fmaf(a, e.y, sum[r][1]);
			}
		}
	}
	for (int r = 0; r < 4; r++)
		*(float2 *)&ws.targets[(row0 + r) * TOKENS + token0] =
			make_float2(sum[r][0], sum[r][1]);
}

/* Walks one block, one thread a token: rounds, then corrects the targets that follow. */
template <int BITS>
static __device__ void block_walk(const plane &p, uint32_t first, uint32_t count, float scale,
				  uint8_t *page, uint32_t token0, const workspace &ws)
{
	constexpr uint32_t FIELDS = 32 / BITS;
	const uint32_t token = threadIdx.x;
	const float inverse = scale > 0.f ? 1.f / scale : 0.f;
	const float half = (float)(1u << (BITS - 1));
	float target[BLOCK];
	uint32_t word = 0;

#pragma unroll
	for (uint32_t i = 0; i < BLOCK; i++)
		target[i] = ws.targets[i * TOKENS + token];
#pragma unroll
	for (uint32_t i = 0; i < BLOCK; i++) {
		if (i < count) {
			const uint32_t at = (first + i) * TOKENS + token;
			float restored, error;

			word |= round_to_code(target[i], inverse, scale, half, &restored)
				<< (BITS * (i % FIELDS));
			if (i % FIELDS == FIELDS - 1) {
				*word_of(p, page, token0 + token, first + i - (FIELDS - 1)) = word;
				word = 0;
			}
			error = ws.values[at] - restored;
			ws.values[at] = error;
#pragma unroll
			for (uint32_t j = i + 1; j < BLOCK; j++)
				target[j] = fmaf(ws.tile[i * TILE_PITCH + j], error, target[j]);
		}
	}
}

static __device__ void round_with_feedback(const plane &p, float scale, uint8_t *page,
					   uint32_t token0, const workspace &ws)
{
	for (uint32_t first = 0; first < p.dim; first += BLOCK) {
		const uint32_t count = min(BLOCK, p.dim - first);

		block_targets(p, first, count, ws);
		__syncthreads();
		/* The diagonal block, transposed: row i holds what error i feeds. */
		for (uint32_t i = threadIdx.x; i < BLOCK * BLOCK; i += THREADS) {
			uint32_t row = i / BLOCK;
			uint32_t column = i % BLOCK;

			ws.tile[column * TILE_PITCH + row] =
				row < count && column < row
					? p.feedback[(uint64_t)(first + row) * p.dim + first +
						     column]
					: 0.f;
		}
		__syncthreads();
		if (threadIdx.x < TOKENS) {
			if (p.bits == 2)
				block_walk<2>(p, first, count, scale, page, token0, ws);
			else
				block_walk<4>(p, first, count, scale, page, token0, ws);
		}
		__syncthreads();
	}
}

static __device__ workspace place(uint8_t *raw, uint32_t dim)
{
	workspace ws;

	ws.values = (float *)raw;
	ws.targets = ws.values + dim * TOKENS;
	ws.tile = ws.targets + BLOCK * TOKENS;
	return ws;
}

/* The plane of tokens token0 … token0 + 31 into @p page, by the whole CTA. */
template <class Rows>
static __device__ void pack_plane(const plane &p, const Rows &rows, uint8_t *page, uint32_t token0,
				  uint8_t *raw)
{
	const workspace ws = place(raw, p.dim);
	float scale;

	load_plane(p, rows, token0, ws.values);
	__syncthreads();
	scale = search_scale(p, ws.values);
	if (p.feedback)
		round_with_feedback(p, scale, page, token0, ws);
	else
		round_plain(p, scale, page, token0, ws);
	if (threadIdx.x < TOKENS)
		((__half *)(page + p.scales_offset))[token0 + threadIdx.x] = __float2half_rn(scale);
}

/* Content that takes back what the RoPE codes did is the CPU table's to write. */
static inline bool pack_supported(const qmk_layout *layout, const qmk_constants *constants)
{
	return layout->format == QMK_FORMAT_PAPER_C4R4 || !constants || !constants->cross_feedback;
}

/* What every writer of pages checks; its own work list is its own matter. */
static inline qmla_status_t pack_check(const struct qmk_pack_args *args)
{
	if (!args->layout || !args->content || !args->rope || !args->pool.base ||
	    args->layer >= args->layout->layers ||
	    args->content_stride < args->layout->content_dim ||
	    args->rope_stride < args->layout->rope_dim)
		return QMLA_ERR_INVALID_ARGUMENT;
	return pack_supported(args->layout, args->constants) ? QMLA_OK : QMLA_ERR_UNSUPPORTED;
}

/* Dynamic shared memory of a kernel that packs planes. */
static inline size_t pack_shared_bytes(const qmk_layout *layout)
{
	const uint32_t dim =
		layout->content_dim > layout->rope_dim ? layout->content_dim : layout->rope_dim;

	if (layout->format == QMK_FORMAT_PAPER_C4R4)
		return 0;
	return (dim * TOKENS + BLOCK * TOKENS + BLOCK * TILE_PITCH) * sizeof(float);
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
	params.planes[0] = plane_of(args, false);
	params.planes[1] = plane_of(args, true);
	return params;
}

#endif /* QMK_CUDA_PACK_PLANE_CUH */
