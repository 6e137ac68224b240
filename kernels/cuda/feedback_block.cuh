/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The steps of rounding with feedback, for one CTA (docs/format.md, 5): 8 tokens, each with
 * 4 scales on trial at once, are its 32 columns.
 *
 * A plane is rounded in blocks of 64 coordinates. Their targets, as far as all earlier
 * errors go, are a matrix product: tiles of the matrix, transposed, in shared memory, the
 * next one on its way in registers, 4 coordinates x 2 columns a thread. Then a warp, a thread
 * a column, walks the block with its targets in registers: it rounds one coordinate and
 * corrects those that follow. Sums run over the errors ascending with fused
 * multiply-adds, as kernels/cpu/quantise.c's do where the processor has them: with the same
 * scale the codes are the same.
 *
 * Shared memory at d_c = 512, d_r = 64: values, later errors 65,536 B, the keys' errors 8,192 B,
 * targets 8,192 B, a tile 17,408 B: two CTAs share an H200's multiprocessor, so that while one
 * walks the other multiplies, and one fits sm_86.
 */
#ifndef QMK_CUDA_FEEDBACK_BLOCK_CUH
#define QMK_CUDA_FEEDBACK_BLOCK_CUH

#include "kernels/cuda/pack_plane.cuh"

#define SLICE        8u               /* tokens of a CTA */
#define TRIALS       (TOKENS / SLICE) /* columns of a token */
#define BLOCK        64u
#define TILE_PITCH   68u /* floats: columns of the tile start 16-byte aligned, in other banks */
#define TILE_COLUMNS (BLOCK / (THREADS / BLOCK)) /* that a thread brings */

struct workspace {
	float *values;    /* [dim][32], overwritten by errors; column t + 8 k is token t's k-th */
	float *remainder; /* [d_r][32]: errors of the keys */
	float *targets;   /* [64][32] */
	float *tile;      /* [64][TILE_PITCH]: column after column of a matrix's block */
	float *own; /* [PARTS][64][32], d_r > 64: a warp's errors of its first block of keys */
};

/* Rows of 32 columns that the values take: the keys' stand before a warp's own errors of them. */
static inline __host__ __device__ uint32_t value_rows(const qmk_layout &layout)
{
	const uint32_t keys = layout.rope_dim + (layout.rope_dim > BLOCK ? PARTS * BLOCK : 0);

	return layout.content_dim > keys ? layout.content_dim : keys;
}

static inline size_t feedback_bytes(const qmk_layout &layout)
{
	const size_t rows = value_rows(layout) + layout.rope_dim + BLOCK;

	return (rows * TOKENS + BLOCK * TILE_PITCH) * sizeof(float);
}

static __device__ workspace place(uint8_t *raw, const qmk_layout &layout)
{
	workspace ws;

	ws.values = (float *)raw;
	ws.own = ws.values + layout.rope_dim * TOKENS;
	ws.remainder = ws.values + value_rows(layout) * TOKENS;
	ws.targets = ws.remainder + layout.rope_dim * TOKENS;
	ws.tile = ws.targets + BLOCK * TOKENS;
	return ws;
}

/* Rows [first, first + count) of a matrix, whose columns meet errors of other coordinates. */
struct factor {
	const float *matrix;
	uint32_t stride, first, count;
};

/* A thread's part of one tile: sixteen columns of a row. */
struct tile_part {
	float value[TILE_COLUMNS];

	/* Columns from @p column on; zeros beyond @p columns and for rows that are not there. */
	__device__ __forceinline__ void fetch(const factor &f, uint32_t column, uint32_t columns)
	{
		const uint32_t row = threadIdx.x % BLOCK;
		const uint32_t at = column + threadIdx.x / BLOCK * TILE_COLUMNS;
		const bool there = row < f.count && at < columns;
		const float4 *from =
			(const float4 *)&f.matrix[(uint64_t)(f.first + row) * f.stride + at];

#pragma unroll
		for (uint32_t i = 0; i < TILE_COLUMNS / 4; i++) {
			float4 v = there ? from[i] : make_float4(0.f, 0.f, 0.f, 0.f);

			value[4 * i] = v.x;
			value[4 * i + 1] = v.y;
			value[4 * i + 2] = v.z;
			value[4 * i + 3] = v.w;
		}
	}

	__device__ __forceinline__ void store(float *tile) const
	{
		const uint32_t row = threadIdx.x % BLOCK;
		const uint32_t at = threadIdx.x / BLOCK * TILE_COLUMNS;

#pragma unroll
		for (uint32_t i = 0; i < TILE_COLUMNS; i++)
			tile[(at + i) * TILE_PITCH + row] = value[i];
	}
};

/* A thread's targets: 4 coordinates of 2 columns. */
struct target_part {
	float sum[4][2];

	static __device__ __forceinline__ uint32_t row()
	{
		return threadIdx.x / (TOKENS / 2) * 4;
	}

	static __device__ __forceinline__ uint32_t column()
	{
		return threadIdx.x % (TOKENS / 2) * 2;
	}

	/* The values of coordinates [first, first + count). */
	__device__ __forceinline__ void start(const float *values, uint32_t first, uint32_t count)
	{
#pragma unroll
		for (uint32_t r = 0; r < 4; r++) {
			float2 v = make_float2(0.f, 0.f);

			if (row() + r < count)
				v = *(const float2
					      *)&values[(first + row() + r) * TOKENS + column()];
			sum[r][0] = v.x;
			sum[r][1] = v.y;
		}
	}

	/* += a tile's columns times errors [columns][32]. */
	__device__ __forceinline__ void add(const float *tile, const float *errors,
					    uint32_t columns)
	{
#pragma unroll 8
		for (uint32_t j = 0; j < columns; j++) {
			const float4 a = *(const float4 *)&tile[j * TILE_PITCH + row()];
			const float2 e = *(const float2 *)&errors[j * TOKENS + column()];

			sum[0][0] = fmaf(a.x, e.x, sum[0][0]);
			sum[0][1] = fmaf(a.x, e.y, sum[0][1]);
			sum[1][0] = fmaf(a.y, e.x, sum[1][0]);
			sum[1][1] = fmaf(a.y, e.y, sum[1][1]);
			sum[2][0] = fmaf(a.z, e.x, sum[2][0]);
			sum[2][1] = fmaf(a.z, e.y, sum[2][1]);
			sum[3][0] = fmaf(a.w, e.x, sum[3][0]);
			sum[3][1] = fmaf(a.w, e.y, sum[3][1]);
		}
	}

	__device__ __forceinline__ void store(float *targets) const
	{
#pragma unroll
		for (uint32_t r = 0; r < 4; r++)
			*(float2 *)&targets[(row() + r) * TOKENS + column()] =
				make_float2(sum[r][0], sum[r][1]);
	}
};

/* Adds rows of a matrix times errors [columns][32]; ends with the last tile still in use. */
static __device__ void add_product(const factor &f, const float *errors, uint32_t columns,
				   float *tile, target_part *part)
{
	tile_part next;

	if (columns == 0)
		return;
	next.fetch(f, 0, columns);
	for (uint32_t known = 0; known < columns; known += BLOCK) {
		__syncthreads();
		next.store(tile);
		__syncthreads();
		if (known + BLOCK < columns)
			next.fetch(f, known + BLOCK, columns);
		part->add(tile, errors + known * TOKENS, min(BLOCK, columns - known));
	}
}

/* The diagonal block of A: column i holds what error i feeds. By all threads, unsynchronised. */
static __device__ void load_diagonal(const plane &p, uint32_t first, uint32_t count, float *tile)
{
	const factor f = {p.feedback, p.dim, first, count};
	tile_part part;

	part.fetch(f, first, first + count);
	part.store(tile);
}

/* What a column's thread knows while it walks a plane. */
struct walker {
	float scale, inverse, half, judged;

	__device__ __forceinline__ void begin(uint32_t bits, float wanted)
	{
		scale = stored_scale(wanted);
		inverse = scale > 0.f ? 1.f / scale : 0.f;
		half = (float)(1u << (bits - 1));
		judged = 0.f;
	}
};

/*
 * Walks one block, one thread a column: rounds, then corrects the targets that follow.
 * @p values [count][32] of the block; sink.take(i, code, error) gets each coordinate's.
 */
template <class Sink>
static __device__ __forceinline__ void block_walk(const plane &p, uint32_t first, uint32_t count,
						  const float *values, const float *tile,
						  float (&target)[BLOCK], walker *w, Sink *sink)
{
	const uint32_t column = threadIdx.x % TOKENS;

#pragma unroll
	for (uint32_t i = 0; i < BLOCK; i++) {
		if (i < count) {
			const float weight = p.weight ? p.weight[first + i] : 1.f;
			float restored, miss, error;
			const uint32_t code =
				round_to_code(target[i], w->inverse, w->scale, w->half, &restored);

			miss = target[i] - restored;
			w->judged = fmaf(weight, miss * miss, w->judged);
			error = values[i * TOKENS + column] - restored;
			sink->take(i, code, error);
#pragma unroll
			for (uint32_t j = i + 1; j < BLOCK; j++)
				target[j] = fmaf(tile[i * TILE_PITCH + j], error, target[j]);
		}
	}
}

#endif /* QMK_CUDA_FEEDBACK_BLOCK_CUH */
