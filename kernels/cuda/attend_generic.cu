/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Absorbed MLA attention for any device from sm_80 on. One CTA of four warps takes
 * 16 query rows of one sequence and a run of tiles; each tile is expanded to fp16 in
 * shared memory, scored (mma m16n8k16: rows x tokens), soft-maxed over base 2 and
 * folded into the output, 128 columns a warp. Partial results go to the workspace;
 * combine_kernel joins an entity's splits.
 *
 * Shared memory, at 512|64: queries 18,688 B, tile 74,752 B, scores 4,352 B,
 * probabilities 2,304 B, statistics 192 B.
 */
#include <math_constants.h>

#include "kernels/cuda/attend_params.cuh"
#include "kernels/cuda/tile.cuh"

#define ROWS         16
#define SCORE_STRIDE 68 /* floats */
#define PROB_STRIDE  72 /* halves: 144 bytes, conflict-free for ldmatrix */
#define LOG2E        1.4426950408889634f

template <int DC, int DR> struct shared_memory {
	__half query[ROWS][DC + DR + 8];
	__half tile[64][DC + DR + 8];
	float score[ROWS][SCORE_STRIDE];
	__half prob[ROWS][PROB_STRIDE];
	float factor[ROWS]; /* what the old output is multiplied by */
	float query_scale[ROWS];
	float total[ROWS];
};

static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *at)
{
	uint32_t address = (uint32_t)__cvta_generic_to_shared(at);

	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(address));
}

static __device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *at)
{
	uint32_t address = (uint32_t)__cvta_generic_to_shared(at);

	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(address));
}

static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
					   uint32_t b1)
{
	asm volatile(
		"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
		"{%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* What a CTA knows of its query rows. */
struct rows_view {
	uint64_t first;  /* row of the query and output arrays: token * heads + head */
	uint32_t count;  /* rows, at most ROWS */
	uint32_t offset; /* row within the sequence */
};

/*
 * Queries to fp16. A row is scaled so that its largest entry is 1,024: absorbed
 * queries can pass 65,504, and small ones keep their bits.
 */
template <int DC, int DR>
static __device__ void load_queries(const qmk_attend_args &args, const rows_view &rows,
				    shared_memory<DC, DR> &sm)
{
	constexpr int EIGHTS = (DC + DR) / 8, LOADS = (EIGHTS + 31) / 32;
	const uint32_t lane = threadIdx.x % 32;

#pragma unroll 2
	for (uint32_t row = threadIdx.x / 32; row < ROWS; row += QMK_TILE_THREADS / 32) {
		const bool inside = row < rows.count;
		float value[LOADS][8] = {};
		float largest = 0.f;
		float factor;

#pragma unroll
		for (int k = 0; k < LOADS; k++) {
			const uint32_t i = (lane + 32 * k) * 8;

			if (inside && i < DC)
				qmk_load8(args.query_content, (rows.first + row) * DC + i,
					  args.query_dtype, value[k]);
			else if (inside && i < DC + DR)
				qmk_load8(args.query_rope, (rows.first + row) * DR + i - DC,
					  args.query_dtype, value[k]);
		}
#pragma unroll
		for (int k = 0; k < LOADS * 8; k++)
			largest = fmaxf(largest, fabsf(value[k / 8][k % 8]));
		for (int step = 16; step; step /= 2)
			largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
		factor = largest > 0.f ? 1024.f / largest : 0.f;
#pragma unroll
		for (int k = 0; k < LOADS; k++) {
			const uint32_t i = (lane + 32 * k) * 8;

#pragma unroll
			for (int j = 0; j < 8; j += 2)
				if (i < DC + DR)
					*(__half2 *)&sm.query[row][i + j] = __floats2half2_rn(
						value[k][j] * factor, value[k][j + 1] * factor);
		}
		if (lane == 0)
			sm.query_scale[row] = args.scale * LOG2E * largest / 1024.f;
	}
}

/* Scores of 16 rows against this warp's 16 tokens, to shared memory. */
template <int DC, int DR> static __device__ void score_tile(shared_memory<DC, DR> &sm)
{
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t token0 = threadIdx.x / 32 * 16;
	float acc[2][4] = {};

#pragma unroll 4
	for (int k = 0; k < DC + DR; k += 16) {
		uint32_t a[4];
		uint32_t b[4];

		ldmatrix_x4(a, &sm.query[lane % 16][k + lane / 16 * 8]);
		/* Matrices: tokens 0-7 k 0-7, tokens 0-7 k 8-15, tokens 8-15 likewise. */
		ldmatrix_x4(b, &sm.tile[token0 + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
		mma(acc[0], a, b[0], b[1]);
		mma(acc[1], a, b[2], b[3]);
	}
	for (int n = 0; n < 2; n++) {
		uint32_t token = token0 + n * 8 + lane % 4 * 2;

		*(float2 *)&sm.score[lane / 4][token] = make_float2(acc[n][0], acc[n][1]);
		*(float2 *)&sm.score[lane / 4 + 8][token] = make_float2(acc[n][2], acc[n][3]);
	}
}

/*
 * Online softmax, eight threads a row. @largest and @total are this thread's copy of
 * its row's running maximum (base 2) and denominator. Token i of the tile counts
 * when low <= i < high and it is not after the row's own position.
 */
template <int DC, int DR>
static __device__ void softmax_tile(shared_memory<DC, DR> &sm, uint32_t low, uint32_t high,
				    float *largest, float *total)
{
	const uint32_t row = threadIdx.x / 8;
	const float scale = sm.query_scale[row];
	float value[8];
	float peak = *largest;
	float sum = 0.f;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		uint32_t token = threadIdx.x % 8 + 8 * i;

		value[i] =
			token >= low && token < high ? sm.score[row][token] * scale : -CUDART_INF_F;
		peak = fmaxf(peak, value[i]);
	}
	for (int step = 1; step < 8; step *= 2)
		peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, step));
#pragma unroll
	for (int i = 0; i < 8; i++) {
		float p = value[i] == -CUDART_INF_F ? 0.f : exp2f(value[i] - peak);
		__half rounded = __float2half_rn(p);

		sm.prob[row][threadIdx.x % 8 + 8 * i] = rounded;
		sum += __half2float(rounded); /* what the product below really sums */
	}
	for (int step = 1; step < 8; step *= 2)
		sum += __shfl_xor_sync(~0u, sum, step);
	if (threadIdx.x % 8 == 0)
		sm.factor[row] = *largest == -CUDART_INF_F ? 0.f : exp2f(*largest - peak);
	*total = *total * (*largest == -CUDART_INF_F ? 0.f : exp2f(*largest - peak)) + sum;
	*largest = peak;
}

/* Output columns of this warp: rescale, then add probabilities times content. */
template <int DC, int DR>
static __device__ void accumulate_tile(shared_memory<DC, DR> &sm, float (&out)[DC / 32][4])
{
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t column0 = threadIdx.x / 32 * (DC / 4);
	const float upper = sm.factor[lane / 4];
	const float lower = sm.factor[lane / 4 + 8];

#pragma unroll
	for (int n = 0; n < DC / 32; n++) {
		out[n][0] *= upper;
		out[n][1] *= upper;
		out[n][2] *= lower;
		out[n][3] *= lower;
	}
#pragma unroll
	for (int k = 0; k < 64; k += 16) {
		uint32_t a[4];

		ldmatrix_x4(a, &sm.prob[lane % 16][k + lane / 16 * 8]);
#pragma unroll
		for (int n = 0; n < DC / 32; n += 2) {
			uint32_t b[4];

			ldmatrix_x4_transposed(
				b, &sm.tile[k + lane % 16][column0 + n * 8 + lane / 16 * 8]);
			mma(out[n], a, b[0], b[1]);
			mma(out[n + 1], a, b[2], b[3]);
		}
	}
}

template <int DC, int DR>
static __device__ void store_partial(const qmk_plan &plan, uint64_t first_row,
				     shared_memory<DC, DR> &sm, float largest, float total,
				     const float (&out)[DC / 32][4])
{
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t column0 = threadIdx.x / 32 * (DC / 4) + lane % 4 * 2;
	float *base = plan.partial + first_row * DC;
	float upper, lower;

	if (threadIdx.x % 8 == 0) {
		sm.total[threadIdx.x / 8] = total > 0.f ? 1.f / total : 0.f;
		plan.partial_lse[first_row + threadIdx.x / 8] =
			total > 0.f ? largest + log2f(total) : -CUDART_INF_F;
	}
	__syncthreads();
	upper = sm.total[lane / 4];
	lower = sm.total[lane / 4 + 8];
#pragma unroll
	for (int n = 0; n < DC / 32; n++) {
		float *at = base + column0 + n * 8;

		*(float2 *)(at + lane / 4 * DC) = make_float2(out[n][0] * upper, out[n][1] * upper);
		*(float2 *)(at + (lane / 4 + 8) * DC) =
			make_float2(out[n][2] * lower, out[n][3] * lower);
	}
}

/* A tile of the current item: where its bytes are and which of its tokens count. */
struct tile_view {
	const uint8_t *page;  /* packed, or NULL */
	const uint16_t *rows; /* BF16 */
	uint32_t position;    /* of token 0 of the tile */
	uint32_t low, high;   /* valid tokens of the tile */
};

/* The i-th BF16 tile of a sequence: sink tiles first, then recent ones. */
static __device__ tile_view bf16_tile(const qmk_sequence &s, uint32_t index, uint32_t row_elements)
{
	uint32_t sink_tiles = (s.sink + QMK_TILE - 1) / QMK_TILE;
	bool sink = index < sink_tiles;
	uint32_t skip = (sink ? index : index - sink_tiles) * QMK_TILE;
	uint32_t start = sink ? 0 : s.packed_end;
	uint32_t end = sink ? s.sink : s.total;

	uint32_t position = start + skip, high = min(QMK_TILE, end - position);
	uint32_t first = qmk_key_begin(s), last = qmk_key_end(s);

	if (last < position + high)
		high = last > position ? last - position : 0;
	return {NULL, (sink ? s.sink_rows : s.recent_rows) + (uint64_t)skip * row_elements,
		position, first > position ? first - position : 0, high};
}

static __device__ tile_view packed_tile(const attend_params &p, const qmk_sequence &s,
					uint32_t index)
{
	uint32_t position = index * QMK_TILE;
	uint32_t slot = p.args.block_table[s.table_start + index];
	uint32_t first = max(s.sink, qmk_key_begin(s)), last = min(s.packed_end, qmk_key_end(s));

	return {qmk_page(p.args.pool, p.layout, slot, p.args.layer), NULL, position,
		first > position ? first - position : 0, min(QMK_TILE, last - position)};
}

template <int BITS, int DC, int DR>
static __device__ void attend_tile(const attend_params &p, uint32_t visible, const tile_view &tile,
				   shared_memory<DC, DR> &sm, float *largest, float *total,
				   float (&out)[DC / 32][4])
{
	uint32_t high = min(tile.high, visible > tile.position ? visible - tile.position : 0);

	__syncthreads(); /* the tile before is done with */
	if (tile.page)
		qmk_tile_load_page<BITS, DC, DR>(p.layout, tile.page, p.rope_mean, tile.low,
						 tile.high, &sm.tile[0][0]);
	else
		qmk_tile_load_rows<DC, DR>(tile.rows, tile.high, p.rope_mean, &sm.tile[0][0]);
	__syncthreads();
	if (!p.layout.rope_rotated) {
		qmk_tile_rotate<DC, DR>(&sm.tile[0][0], p.rope, tile.position);
		__syncthreads();
	}
	score_tile<DC, DR>(sm);
	__syncthreads();
	softmax_tile<DC, DR>(sm, tile.low, high, largest, total);
	__syncthreads();
	accumulate_tile<DC, DR>(sm, out);
}

/* ROWS rows of an entity, from its row block @block on, over tiles [begin, end). */
template <int BITS, int DC, int DR>
static __device__ void attend_item(const attend_params &p, uint32_t entity, uint32_t block,
				   uint32_t begin, uint32_t end, uint32_t split, bool packed,
				   shared_memory<DC, DR> &sm)
{
	const qmk_sequence s = p.args.sequences[entity / p.shape.groups];
	const uint32_t offset = entity % p.shape.groups * p.shape.rows + block * ROWS;
	const uint32_t sequence_rows = s.queries * p.args.heads;
	float out[DC / 32][4] = {};
	float largest = -CUDART_INF_F;
	float total = 0.f;
	uint32_t visible;

	if (offset >= sequence_rows)
		return;
	const rows_view rows = {(uint64_t)s.query_row * p.args.heads + offset,
				min((uint32_t)ROWS, sequence_rows - offset), offset};

	visible = attend_visible(s, offset + threadIdx.x / 8, p.args.heads);
	__syncthreads();
	load_queries<DC, DR>(p.args, rows, sm);
	for (uint32_t i = begin; i < end; i++) {
		tile_view tile = packed ? packed_tile(p, s, i) : bf16_tile(s, i, DC + DR);

		attend_tile<BITS, DC, DR>(p, visible, tile, sm, &largest, &total, out);
	}
	store_partial<DC, DR>(p.plan, (uint64_t)split * p.shape.rows + block * ROWS, sm, largest,
			      total, out);
}

/*
 * A CTA for every row block of an entity: its BF16 rows. It may run beside the kernel of
 * the packed tiles, which lets it begin only when all before that kernel has ended.
 */
template <int BITS, int DC, int DR>
static __global__ void __launch_bounds__(QMK_TILE_THREADS)
	bf16_kernel(const __grid_constant__ attend_params p)
{
	extern __shared__ __align__(16) uint8_t raw[];
	const uint32_t entity = blockIdx.x;
	const uint32_t split = p.plan.bf16_split[entity];

	grid_launch_dependents();
	if (split != UINT32_MAX) {
		const qmk_sequence s = p.args.sequences[entity / p.shape.groups];
		uint32_t tiles = (s.sink + QMK_TILE - 1) / QMK_TILE +
				 (s.total - s.packed_end + QMK_TILE - 1) / QMK_TILE;

		attend_item<BITS, DC, DR>(p, entity, blockIdx.y, 0, tiles, split, false,
					  *(shared_memory<DC, DR> *)raw);
	}
	grid_wait(); /* the end of this grid means the end of those before it */
}

/* `parts` CTAs share the packed tiles. */
template <int BITS, int DC, int DR>
static __global__ void __launch_bounds__(QMK_TILE_THREADS)
	packed_kernel(const __grid_constant__ attend_params p)
{
	extern __shared__ __align__(16) uint8_t raw[];

	grid_launch_dependents();
	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];

		attend_item<BITS, DC, DR>(p, item.entity, 0, item.tile_begin, item.tile_end,
					  item.split, true, *(shared_memory<DC, DR> *)raw);
	}
}

template <int BITS, int DC, int DR>
static qmla_status_t launch(const attend_params &p, attend_generic_part part, cudaStream_t stream)
{
	const size_t bytes = sizeof(shared_memory<DC, DR>);
	void (*kernel)(attend_params) =
		part == ATTEND_PACKED ? packed_kernel<BITS, DC, DR> : bf16_kernel<BITS, DC, DR>;
	qmla_status_t status = qmk_cuda_status(cudaFuncSetAttribute(
		kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));

	if (status == QMLA_OK)
		status = qmk_share_like_hopper((const void *)kernel);
	if (status != QMLA_OK)
		return status;
	return part == ATTEND_PACKED
		       ? qmk_launch(kernel, dim3(p.shape.parts), QMK_TILE_THREADS, bytes, false,
				    stream, p)
		       : qmk_launch(kernel, dim3(p.shape.entities, p.shape.rows / ROWS),
				    QMK_TILE_THREADS, bytes, true, stream, p);
}

template <int DC, int DR>
static qmla_status_t launch_bits(const attend_params &p, attend_generic_part part,
				 cudaStream_t stream)
{
	return p.layout.content_bits == 2 ? launch<2, DC, DR>(p, part, stream)
					  : launch<4, DC, DR>(p, part, stream);
}

qmla_status_t attend_generic_launch(const attend_params &p, attend_generic_part part,
				    cudaStream_t stream)
{
	if (p.layout.content_dim == 512 && p.layout.rope_dim == 64)
		return launch_bits<512, 64>(p, part, stream);
	if (p.layout.content_dim == 256 && p.layout.rope_dim == 32)
		return launch_bits<256, 32>(p, part, stream);
	if (p.layout.content_dim == 256 && p.layout.rope_dim == 64)
		return launch_bits<256, 64>(p, part, stream);
	return QMLA_ERR_UNSUPPORTED;
}
