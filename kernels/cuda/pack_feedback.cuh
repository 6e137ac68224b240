/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Rounds half a page with feedback, by one CTA: the RoPE keys first, then the content, whose
 * targets take back what the keys' codes left (docs/format.md, 5).
 *
 * A plane is rounded in blocks of 64 coordinates. Their targets, as far as all earlier
 * errors go, are a matrix product: tiles of the matrix, transposed, in shared memory, the
 * next one on its way in registers, 4 coordinates x 2 tokens a thread. Then one warp, a thread
 * a token, walks the block with its targets in registers: it rounds one coordinate and
 * corrects those that follow. Sums run over the errors ascending with fused
 * multiply-adds, as in kernels/cpu/quantise.c: with the same scale the codes are the same.
 *
 * Scales are searched by rounding with each of a few; the one that leaves the least
 * weighted error stays. Keys have so few coordinates that each warp walks with a scale
 * of its own, the same 48 that the CPU tries. Content is walked once for each of content_ratio,
 * fewer than on the CPU: what that costs is in docs/kernels.md.
 *
 * Shared memory at d_c = 512, d_r = 64: values, later errors 65,536 B, the keys' errors 8,192 B,
 * targets 8,192 B, a tile 17,408 B: two CTAs share an H200's multiprocessor, so that while one
 * walks the other multiplies, and one fits sm_86.
 */
#ifndef QMK_CUDA_PACK_FEEDBACK_CUH
#define QMK_CUDA_PACK_FEEDBACK_CUH

#include "kernels/cuda/pack_plane.cuh"

#define BLOCK          64u
#define TILE_PITCH     68u /* floats: columns of the tile start 16-byte aligned, in other banks */
#define TILE_COLUMNS   (BLOCK / (THREADS / BLOCK)) /* that a thread brings */
#define KEY_TRIALS     48u
#define CONTENT_RATIOS 4

struct workspace {
	float *values;    /* [dim][32], overwritten by errors */
	float *remainder; /* [d_r][32]: errors of the keys */
	float *targets;   /* [64][32] */
	float *tile;      /* [64][TILE_PITCH]: column after column of a matrix's block */
	float *own; /* [PARTS][64][32], d_r > 64: a warp's errors of its first block of keys */
};

/* A token's best scale so far. */
struct verdict {
	float error, scale;
	uint32_t trial;
};

/* Rows of 32 tokens that the values take: the keys' stand before a warp's own errors of them. */
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

/* A thread's targets: 4 coordinates of 2 tokens. */
struct target_part {
	float sum[4][2];

	static __device__ __forceinline__ uint32_t row()
	{
		return threadIdx.x / (TOKENS / 2) * 4;
	}

	static __device__ __forceinline__ uint32_t token()
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
					      *)&values[(first + row() + r) * TOKENS + token()];
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
			const float2 e = *(const float2 *)&errors[j * TOKENS + token()];

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
			*(float2 *)&targets[(row() + r) * TOKENS + token()] =
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

/* What a token's thread knows while it walks a plane. */
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
 * Walks one block, one thread a token: rounds, then corrects the targets that follow.
 * @p values [count][32] of the block; sink.take(i, code, error) gets each coordinate's.
 */
template <class Sink>
static __device__ __forceinline__ void block_walk(const plane &p, uint32_t first, uint32_t count,
						  const float *values, const float *tile,
						  float (&target)[BLOCK], walker *w, Sink *sink)
{
	const uint32_t token = threadIdx.x % TOKENS;

#pragma unroll
	for (uint32_t i = 0; i < BLOCK; i++) {
		if (i < count) {
			const float weight = p.weight ? p.weight[first + i] : 1.f;
			float restored, miss, error;
			const uint32_t code =
				round_to_code(target[i], w->inverse, w->scale, w->half, &restored);

			miss = target[i] - restored;
			w->judged = fmaf(weight, miss * miss, w->judged);
			error = values[i * TOKENS + token] - restored;
			sink->take(i, code, error);
#pragma unroll
			for (uint32_t j = i + 1; j < BLOCK; j++)
				target[j] = fmaf(tile[i * TILE_PITCH + j], error, target[j]);
		}
	}
}

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
	verdict best = {FLT_MAX, 0.f, 0};
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
		better = w.judged < best.error || trial == 0;
		if (threadIdx.x < TOKENS) {
			ws.targets[threadIdx.x] = better ? w.scale : -1.f;
			if (better)
				best = {w.judged, w.scale, 0};
		}
		__syncthreads();
		accept_content(p, rows, ws.targets, page, token0, ws.values);
		__syncthreads();
	}
	if (threadIdx.x < TOKENS)
		store_scale(p, best.scale, page, token0 + threadIdx.x);
}

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
