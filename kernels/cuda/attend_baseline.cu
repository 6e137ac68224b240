/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The baseline: the same transposed products, work list, stale maximum and combine as for
 * packed pages, on BF16 pages. Both operands come from shared memory, so a page costs one
 * bulk copy and no work on elements. Two warpgroups see every page: each computes all
 * scores (twice the products, which a kernel bound by memory does not feel) and owns half
 * of the output's columns, so that nothing is exchanged.
 */
#include "kernels/cuda/baseline.h"

#include "kernels/cuda/attend_shape.cuh"

#define CONSUMERS 2
#define STAGES    2
#define TILES     4 /* of 64 columns, a warpgroup's */
#define STALE     8.f

template <int N_> struct baseline_shape {
	static constexpr int N = N_;
	static constexpr int THREADS = CONSUMERS * 128 + 32;
	static constexpr int QUERY = 0;
	static constexpr int BLOCK = N * 128; /* 64 values of all rows */
	static constexpr int PROB = QUERY + 9 * BLOCK;
	static constexpr int SCRATCH = PROB + CONSUMERS * BLOCK;
	static constexpr int STAGES_AT = (SCRATCH + CONSUMERS * 4 * N * 4 + 1023) / 1024 * 1024;
	static constexpr int BARRIERS_AT = STAGES_AT + STAGES * (int)QMK_BASELINE_PAGE_BYTES;
	static constexpr int BYTES = BARRIERS_AT + 16 * STAGES;
};

/* d (64 x 16 or 32) += A B, BF16, both in shared memory; TRANS: A's rows lie along memory. */
template <int TRANS>
static __device__ __forceinline__ void product(float (&d)[8], uint64_t a, uint64_t b)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
		     "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
		     "{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, %10, 0;\n}\n"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
		       "+f"(d[6]), "+f"(d[7])
		     : "l"(a), "l"(b), "n"(TRANS));
}

template <int TRANS>
static __device__ __forceinline__ void product(float (&d)[16], uint64_t a, uint64_t b)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
		     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
		     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, "
		     "p, 1, 1, %18, 0;\n}\n"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
		       "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
		       "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
		     : "l"(a), "l"(b), "n"(TRANS));
}

/* One warpgroup's state over an item. */
template <class K> struct baseline_state {
	float out[TILES][K::N / 2];
	float total[K::N / 4], peak[K::N / 4];
	bool unset; /* no token seen yet */
};

template <class K> static __device__ void copy_pages(const attend_params &p, uint32_t base)
{
	const uint64_t policy = evict_first_policy();
	const uint32_t bars = base + K::BARRIERS_AT;
	uint32_t stage = 0, parity = 1;

	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];
		const uint32_t *table = p.args.block_table +
					p.args.sequences[item.entity / p.shape.groups].table_start;

		for (uint32_t tile = item.tile_begin; tile < item.tile_end; tile++) {
			const uint8_t *page = (const uint8_t *)p.args.pool.base +
					      table[tile] * p.args.pool.stride;

			barrier_wait(bars + 16 * stage + 8, parity);
			barrier_expect(bars + 16 * stage, QMK_BASELINE_PAGE_BYTES);
			bulk_copy_once(base + K::STAGES_AT + stage * QMK_BASELINE_PAGE_BYTES, page,
				       QMK_BASELINE_PAGE_BYTES, bars + 16 * stage, policy);
			if (++stage == STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
	}
}

/* Query rows of an entity as BF16, K-major blocks of 64 values. */
template <class K>
static __device__ void load_queries(const attend_params &p, const qmk_item &item, uint8_t *shared)
{
	const qmk_sequence &s = p.args.sequences[item.entity / p.shape.groups];
	const uint32_t offset = item.entity % p.shape.groups * K::N;

	group_sync(15, CONSUMERS * 128); /* the item before is done with */
	grid_wait();
	for (uint32_t i = threadIdx.x; i < K::N * 72; i += CONSUMERS * 128) {
		const uint32_t n = i / 72, k = i % 72 * 8;
		const bool rope = k >= DC;
		const uint64_t row = (uint64_t)s.query_row * p.args.heads + offset + n;
		float value[8] = {};
		__nv_bfloat162 pair[4];

		if (offset + n < s.queries * p.args.heads)
			qmk_load8(rope ? p.args.query_rope : p.args.query_content,
				  rope ? row * DR + k - DC : row * DC + k, p.args.query_dtype,
				  value);
#pragma unroll
		for (int j = 0; j < 4; j++)
			pair[j] = __floats2bfloat162_rn(value[2 * j], value[2 * j + 1]);
		*(uint4 *)(shared + K::QUERY + image_at<K::N>(n, 2 * k)) = *(uint4 *)pair;
	}
	async_proxy_fence();
	group_sync(15, CONSUMERS * 128);
}

/* Raises the peaks to what this page needs; scores are in base 2. */
template <class K>
static __device__ void raise(const float (&score)[K::N / 2], float *scratch, uint32_t barrier,
			     baseline_state<K> &st)
{
	const uint32_t warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;

#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		float x = fmaxf(score[4 * (j / 2) + j % 2], score[4 * (j / 2) + 2 + j % 2]);

		for (int step = 4; step < 32; step *= 2)
			x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
		if (g == 0)
			scratch[warp * K::N + j / 2 * 8 + 2 * q + j % 2] = x;
	}
	group_sync(barrier, 128);
#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		float peak = st.peak[j], shrink;

#pragma unroll
		for (int w = 0; w < 4; w++)
			peak = fmaxf(peak, scratch[w * K::N + j / 2 * 8 + 2 * q + j % 2]);
		shrink = exp2_fast(st.peak[j] - peak);
		st.total[j] *= shrink;
		st.peak[j] = peak;
#pragma unroll
		for (int t = 0; t < TILES; t++) {
			st.out[t][4 * (j / 2) + j % 2] *= shrink;
			st.out[t][4 * (j / 2) + 2 + j % 2] *= shrink;
		}
	}
	group_sync(barrier, 128);
}

/* One page: scores, probabilities as BF16 to shared memory, output. */
template <class K>
static __device__ __forceinline__ void
page_of(const attend_params &p, const qmk_sequence &s, uint32_t offset, uint32_t position,
	uint32_t page, uint32_t base, uint8_t *shared, baseline_state<K> &st)
{
	const uint32_t group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
	const uint32_t prob = base + K::PROB + group * K::BLOCK, barrier = 1 + group;
	const uint64_t key = wgmma_descriptor(page), query = wgmma_descriptor(base + K::QUERY);
	const float scale = p.args.scale * LOG2E;
	float score[K::N / 2] = {}, over = MASKED;
	uint32_t packed[K::N / 4];

	wgmma_fence();
#pragma unroll
	for (int k = 0; k < 36; k++)
		product<0>(score, key + (k / 4 * 8192 + k % 4 * 32) / 16,
			   query + (k / 4 * K::BLOCK + k % 4 * 32) / 16);
	wgmma_commit();
	wgmma_wait<0>();
#pragma unroll
	for (int j = 0; j < K::N / 2; j++) {
		const uint32_t token = position + warp * 16 + lane / 4 + j / 2 % 2 * 8;
		const uint32_t row = min(offset + j / 4 * 8 + 2 * (lane % 4) + j % 2,
					 s.queries * p.args.heads - 1);
		const uint32_t limit = min(attend_visible(s, row, p.args.heads), s.packed_end);

		score[j] = token < limit ? score[j] * scale : MASKED;
		over = fmaxf(over, score[j] - st.peak[j / 4 * 2 + j % 2]);
	}
	if (group_any(barrier, 128, over > STALE))
		raise<K>(score, (float *)(shared + K::SCRATCH) + group * 4 * K::N, barrier, st);
#pragma unroll
	for (int j = 0; j < K::N / 8; j++) {
		float e[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			e[i] = exp2_fast(score[4 * j + i] - st.peak[2 * j + i % 2]);
		st.total[2 * j] += e[0] + e[2];
		st.total[2 * j + 1] += e[1] + e[3];
		__nv_bfloat162 low = __floats2bfloat162_rn(e[0], e[1]),
			       high = __floats2bfloat162_rn(e[2], e[3]);
		packed[2 * j] = *(uint32_t *)&low;
		packed[2 * j + 1] = *(uint32_t *)&high;
	}
#pragma unroll
	for (int j = 0; j < K::N / 16; j++) {
		const uint32_t row = lane / 16 * 8 + lane % 8 + 16 * j;
		const uint32_t chunk = 2 * warp + lane / 8 % 2;

		store_matrices_transposed(
			prob + row / 8 * 1024 + row % 8 * 128 + (chunk ^ row % 8) * 16,
			packed[4 * j], packed[4 * j + 1], packed[4 * j + 2], packed[4 * j + 3]);
	}
	async_proxy_fence();
	group_sync(barrier, 128);
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int t = 0; t < TILES; t++)
			product<1>(st.out[t], key + ((group * TILES + t) * 8192 + k * 2048) / 16,
				   wgmma_descriptor(prob) + k * 2);
	wgmma_commit();
	wgmma_wait<0>();
}

/* The item's rows to where they go: a partial result, or out when it is the whole. */
template <class K>
static __device__ void write_item(const attend_params &p, const qmk_item &item,
				  const qmk_sequence &s, uint32_t offset, uint8_t *shared,
				  baseline_state<K> &st)
{
	const uint32_t group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
	const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
	const bool whole = p.plan.entities[item.entity].splits == 1;
	float *scratch = (float *)(shared + K::SCRATCH) + group * 4 * K::N;

#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		for (int step = 4; step < 32; step *= 2)
			st.total[j] += __shfl_xor_sync(~0u, st.total[j], step);
		if (g == 0)
			scratch[warp * K::N + j / 2 * 8 + 2 * q + j % 2] = st.total[j];
	}
	group_sync(1 + group, 128);
#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		const uint32_t n = j / 2 * 8 + 2 * q + j % 2;
		const uint64_t row = whole ? (uint64_t)s.query_row * p.args.heads + offset + n
					   : (uint64_t)item.split * K::N + n;
		float total = 0.f, inverse;

		for (int w = 0; w < 4; w++)
			total += scratch[w * K::N + n];
		inverse = total > 0.f ? 1.f / total : 0.f;
		if (whole && offset + n >= s.queries * p.args.heads)
			continue;
#pragma unroll
		for (int t = 0; t < TILES; t++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint32_t dim =
					(group * TILES + t) * 64 + warp * 16 + g + 8 * i;
				const float value =
					st.out[t][4 * (j / 2) + 2 * i + j % 2] * inverse;

				if (whole)
					qmk_store(p.args.output, row * DC + dim,
						  p.args.output_dtype, value);
				else
					p.plan.partial[row * DC + dim] = value;
			}
		float *lse = whole ? p.args.lse : p.plan.partial_lse;

		if (group == 0 && warp == 0 && g == 0 && lse)
			lse[row] = total > 0.f ? st.peak[j] + log2f(total) : -CUDART_INF_F;
	}
}

template <class K>
static __device__ void consume(const attend_params &p, uint8_t *shared, uint32_t base)
{
	const uint32_t bars = base + K::BARRIERS_AT;
	uint32_t stage = 0, parity = 0;

	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];
		const qmk_sequence s = p.args.sequences[item.entity / p.shape.groups];
		const uint32_t offset = item.entity % p.shape.groups * K::N;
		baseline_state<K> st = {};

#pragma unroll
		for (int j = 0; j < K::N / 4; j++)
			st.peak[j] = MASKED;
		load_queries<K>(p, item, shared);
#pragma unroll 1
		for (uint32_t tile = item.tile_begin; tile < item.tile_end; tile++) {
			barrier_wait(bars + 16 * stage, parity);
			page_of<K>(p, s, offset, tile * QMK_TILE,
				   base + K::STAGES_AT + stage * QMK_BASELINE_PAGE_BYTES, base,
				   shared, st);
			if (threadIdx.x % 32 == 0)
				barrier_arrive(bars + 16 * stage + 8);
			if (++stage == STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
		write_item<K>(p, item, s, offset, shared, st);
	}
}

template <class K>
static __global__ void __launch_bounds__(K::THREADS, 1)
	baseline_kernel(const __grid_constant__ attend_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL /* other targets get an empty body and never launch it */
	extern __shared__ __align__(1024) uint8_t shared[];
	const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);

	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(base + K::BARRIERS_AT + 16 * i, 1);
			barrier_init(base + K::BARRIERS_AT + 16 * i + 8, CONSUMERS * 4);
		}
		async_proxy_fence();
	}
	__syncthreads();
	grid_wait();
	grid_launch_dependents();
	if (threadIdx.x < CONSUMERS * 128)
		consume<K>(p, shared, base);
	else if (threadIdx.x == CONSUMERS * 128)
		copy_pages<K>(p, base);
#endif
}

template <class K> static qmla_status_t launch(const attend_params &p, cudaStream_t stream)
{
	qmla_status_t status = qmk_cuda_status(cudaFuncSetAttribute(
		baseline_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, K::BYTES));

	if (status == QMLA_OK)
		status = qmk_share_like_hopper((const void *)baseline_kernel<K>);
	if (status != QMLA_OK)
		return status;
	return qmk_launch(baseline_kernel<K>, dim3(p.shape.parts), K::THREADS, K::BYTES, true,
			  stream, p);
}

qmla_status_t attend_baseline_launch(const attend_params &p, cudaStream_t stream)
{
	if (p.shape.rows == 16)
		return launch<baseline_shape<16>>(p, stream);
	if (p.shape.rows == 32)
		return launch<baseline_shape<32>>(p, stream);
	return QMLA_ERR_UNSUPPORTED;
}
