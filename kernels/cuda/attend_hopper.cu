/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Absorbed MLA decode over packed pages on Hopper (docs/kernels.md explains the data
 * flow). The product is transposed: tokens and latent dimensions fill the 64 rows of a
 * wgmma, query rows are its N columns, so 16 heads waste nothing.
 *
 * One CTA a multiprocessor. Of its first warpgroup one thread copies pages into a ring of
 * stages, and two warps turn the RoPE queries back by each page's angle; each consumer
 * warpgroup takes every LANES-th page by itself. Per page it computes
 *
 *   scores  S = K Q: codes are u8 operands as they stand (a byte with two or four codes,
 *           and the same byte with the upper codes masked off, against coefficients that
 *           make up for the overlap), queries s8 in one or two planes, side by side as
 *           columns: exact integers; RoPE keys are expanded to fp16, turned in registers
 *           while those products run, and added on top;
 *   softmax in base 2 with a stale maximum (rescaled only when a score passes it by 8);
 *   output  O += V P: codes as fp16 subnormals u * 2^-24, again as they stand.
 *
 * Scales never touch an element: s_t multiplies a score and a probability, the offset of
 * the codes is subtracted from sums.
 */
#include "kernels/cuda/attend_output.cuh"
#include "kernels/cuda/attend_stage.cuh"

#define STALE        8.f /* probabilities stay below 2^8 */
#define TURN_THREADS 64u /* warps 1 and 2 of the producer's warpgroup */

template <class K> static __device__ void produce(const attend_params &p, uint32_t base)
{
	const uint64_t policy = evict_first_policy();
	const uint32_t bars = base + K::BARRIERS_AT;
	const uint8_t *layer = (const uint8_t *)p.args.pool.base + p.layout.header_bytes +
			       (uint64_t)p.args.layer * p.layout.page_bytes;
	uint32_t stage = 0, parity = 1;

	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];
		const qmk_sequence &s = p.args.sequences[item.entity / p.shape.groups];
		const uint32_t *table = p.args.block_table + s.table_start;
		uint32_t next = table[item.tile_begin];

		for (uint32_t tile = item.tile_begin; tile < item.tile_end; tile++) {
			const uint8_t *page = layer + (uint64_t)next * p.args.pool.stride;

			if (tile + 1 < item.tile_end)
				next = table[tile + 1];
			barrier_wait(bars + 16 * stage + 8, parity);
			barrier_expect(bars + 16 * stage, K::codes::PAGE_BYTES);
			if (p.shape.groups == 1)
				bulk_copy_once(base + K::STAGES_AT + stage * K::codes::PAGE_BYTES,
					       page, K::codes::PAGE_BYTES, bars + 16 * stage,
					       policy);
			else
				bulk_copy(base + K::STAGES_AT + stage * K::codes::PAGE_BYTES, page,
					  K::codes::PAGE_BYTES, bars + 16 * stage);
			if (++stage == K::STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
	}
}

/*
 * q . R(64 P + i) k = (R(-64 P) q) . (R(i) k): the query is turned once a page, so that
 * keys need in-page constants only. A task is 16 bytes of x and of y of one row; a thread
 * always has the same tasks, so its copy of the query needs no barrier.
 */
template <class K> static __device__ void turn_queries(const attend_params &p, uint32_t base)
{
	constexpr int TASKS = K::ROWS * 4 / TURN_THREADS;
	const uint32_t bars = base + K::BARRIERS_AT;
	const uint32_t thread = threadIdx.x - 32;
	const uint32_t couple = thread % 4;
	const uint32_t x_unit = K::HALF_SPLIT ? 2 * couple : couple % 2 * 4 + couple / 2;
	const uint32_t y_unit = K::HALF_SPLIT ? x_unit + 1 : x_unit + 2;
	const uint32_t x_at = image_at<K::ROWS>(thread / 4, x_unit * 16);
	const uint32_t y_at = image_at<K::ROWS>(thread / 4, y_unit * 16);
	uint32_t stage = 0, parity = 1;

	grid_wait(); /* the staged queries */
	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];
		const uint8_t *image = p.plan.query_image +
				       (uint64_t)item.entity * K::ROWS * K::IMAGE + K::QUERY_BYTES;
		const uint4 *turns = p.plan.page_turns + item.tile_begin * 8 + couple * 2;

		/* TURN_THREADS / 4 rows on are 2,048 bytes on. */
#pragma unroll 1
		for (int k = 0; k < TASKS; k++) {
			*(uint4 *)__cvta_shared_to_generic(base + K::KEY_QUERY + x_at + 2048 * k) =
				*(const uint4 *)(image + x_at + 2048 * k);
			*(uint4 *)__cvta_shared_to_generic(base + K::KEY_QUERY + y_at + 2048 * k) =
				*(const uint4 *)(image + y_at + 2048 * k);
		}
#pragma unroll 1
		for (uint32_t tile = item.tile_begin; tile < item.tile_end; tile++) {
			const uint4 cosine = __ldg(turns), sine = __ldg(turns + 1);
			const uint32_t c[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
			const uint32_t s[4] = {sine.x, sine.y, sine.z, sine.w};
			const uint32_t turned = base + K::TURNED + stage * K::KEY_QUERY_BYTES;

			turns += 8;
			barrier_wait(bars + 16 * stage + 8, parity);
#pragma unroll 1
			for (int k = 0; k < TASKS; k++) {
				const uint4 xs =
					load_shared4(base + K::KEY_QUERY + x_at + 2048 * k);
				const uint4 ys =
					load_shared4(base + K::KEY_QUERY + y_at + 2048 * k);
				uint32_t x[4] = {xs.x, xs.y, xs.z, xs.w};
				uint32_t y[4] = {ys.x, ys.y, ys.z, ys.w};

#pragma unroll
				for (int w = 0; w < 4; w++) {
					const __half2 a = as_half2(x[w]), b = as_half2(y[w]);

					x[w] = as_word(__hfma2(a, as_half2(c[w]),
							       __hmul2(b, as_half2(s[w]))));
					y[w] = as_word(
						__hfma2(b, as_half2(c[w]),
							__hneg2(__hmul2(a, as_half2(s[w])))));
				}
				store_shared4(turned + x_at + 2048 * k, x);
				store_shared4(turned + y_at + 2048 * k, y);
			}
			async_proxy_fence();
			__syncwarp();
			if (threadIdx.x % 32 == 0)
				barrier_arrive(bars + 16 * stage);
			if (++stage == K::STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
	}
}

/* All consumers: the item's queries, factors and limits to shared memory. */
template <class K>
static __device__ void load_item(const attend_params &p, const qmk_item &item, uint8_t *shared,
				 uint32_t base, uint32_t query_barrier, uint32_t parity)
{
	const uint32_t thread = threadIdx.x - 128;
	const qmk_sequence &s = p.args.sequences[item.entity / p.shape.groups];
	const uint32_t offset = item.entity % p.shape.groups * K::ROWS;

	group_sync(15, K::GROUPS * 128); /* the item before is done with */
	grid_wait(); /* the staged queries; returns at once after the first time */
	if (thread == 0) {
		barrier_expect(query_barrier, K::QUERY_BYTES);
		bulk_copy(base + K::QUERY,
			  p.plan.query_image + (uint64_t)item.entity * K::ROWS * K::IMAGE,
			  K::QUERY_BYTES, query_barrier);
	}
	if (thread < K::ROWS) {
		const uint32_t visible = attend_visible(
			s, min(offset + thread, s.queries * p.args.heads - 1), p.args.heads);

		((float2 *)(shared + K::FACTORS))[thread] =
			p.plan.query_factors[(uint64_t)item.entity * K::ROWS + thread];
		((uint32_t *)(shared + K::LIMITS))[thread] =
			min(min(visible, s.packed_end), qmk_key_end(s));
	}
	barrier_wait(query_barrier, parity);
	group_sync(15, K::GROUPS * 128);
}

/* Where a page is, and what of it counts. */
struct page_view {
	uint32_t page;  /* shared memory */
	uint64_t query; /* descriptors of the content images and the turned RoPE queries */
	uint64_t turned;
	uint32_t prob;                   /* shared memory */
	uint32_t position;               /* of its first token */
	uint32_t first_key, first_limit; /* all rows see what is between */
	const uint32_t *limits;
};

/* One page: scores, probabilities, output. The last products are left in flight. */
template <class K>
static __device__ __forceinline__ void consume_page(const page_view &view, uint8_t *shared,
						    const place &at, running<K::N> &run,
						    float (&out)[8][K::N / 2])
{
	using C = typename K::codes;
	float score[K::N / 2], total[K::N / 4], offset[K::N / 4], scale[2];
	float over = MASKED;

	{
		const uint32_t scales = view.page + C::SCALES + 2 * (at.warp * 16 + at.g);
		int acc[K::SUMS][K::COLUMNS / 2];
		rope_keys<K> keys;

		content_products<K>(view.page, view.query, at, acc, keys);
		for (int r = 0; r < 2; r++)
			scale[r] = __half2float(__ushort_as_half(
				(unsigned short)load_shared_half(scales + 16 * r)));
		wgmma_wait<0>();
		content_scores<K>(acc, at.base + K::FACTORS + (at.head_part * K::N + 2 * at.q) * 8,
				  scale, run, score);
		wgmma_fence();
#pragma unroll
		for (int k = 0; k < 4; k++)
			wgmma_f16(score, keys.a[k], view.turned + k * 2, 1);
		wgmma_commit();
		wgmma_wait<0>();
	}
	if (view.position + QMK_TILE > view.first_limit || view.position < view.first_key)
		mask_page<K>(view.position, view.first_key, view.limits, at, score, scale);
#pragma unroll
	for (int j = 0; j < K::N / 2; j++)
		over = fmaxf(over, score[j]);
	store_probabilities<K>(score, scale, view.prob, at, total, offset);
	if (group_any(at.barrier, 128, over > STALE || run.unset)) {
		raise_peaks<K>(score, shared, at, run, out);
		store_probabilities<K>(score, scale, view.prob, at, total, offset);
		group_sync(at.barrier, 128);
	}
#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		run.total[j] += total[j];
		run.offset[j] += offset[j];
	}
	accumulate<K>(view.page, wgmma_descriptor(view.prob), at, out);
}

template <class K>
static __device__ __forceinline__ target target_of(const attend_params &p, const qmk_item &item,
						   const qmk_sequence &s)
{
	const uint32_t offset = item.entity % p.shape.groups * K::ROWS;

	if (p.plan.entities[item.entity].splits > 1)
		return {false, (uint64_t)item.split * K::ROWS, K::ROWS};
	return {true, (uint64_t)s.query_row * p.args.heads + offset,
		min((uint32_t)K::ROWS, s.queries * p.args.heads - offset)};
}

template <class K>
static __device__ void consume(const attend_params &p, uint8_t *shared, uint32_t base,
			       const place &at)
{
	const uint32_t bars = base + K::BARRIERS_AT;
	const uint32_t query_barrier = bars + 16 * K::STAGES;
	const uint64_t turned = wgmma_descriptor(base + K::TURNED + at.head_part * K::N * 128);
	const uint32_t prob = base + K::PROB + at.group * 2 * K::N * 128;
	uint32_t pages_before = 0, query_parity = 0, exchanges = 0;
	page_view view;

	view.query = wgmma_descriptor(base + K::QUERY + at.head_part * K::COLUMNS * 512);
	view.limits = (const uint32_t *)(shared + K::LIMITS) + at.head_part * K::N;
	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];
		const qmk_sequence &s = p.args.sequences[item.entity / p.shape.groups];
		const uint32_t pages = item.tile_end - item.tile_begin;
		uint32_t stage = (pages_before + at.lane_set) % K::STAGES;
		uint32_t parity = (pages_before + at.lane_set) / K::STAGES % 2;
		uint32_t buffer = 0;
		float out[8][K::N / 2];
		running<K::N> run;

		view.first_key = max(s.sink, qmk_key_begin(s));
		load_item<K>(p, item, shared, base, query_barrier, query_parity);
		query_parity ^= 1;
		view.first_limit = view.limits[0]; /* rows are in order of query: the least */
#pragma unroll
		for (int t = 0; t < 8; t++)
#pragma unroll
			for (int j = 0; j < K::N / 2; j++)
				out[t][j] = 0.f;
#pragma unroll
		for (int j = 0; j < K::N / 4; j++)
			run.total[j] = run.offset[j] = run.peak[j] = 0.f;
		run.unset = (1u << K::N / 4) - 1;
#pragma unroll 1
		for (uint32_t n = at.lane_set; n < pages; n += K::LANES) {
			view.page = base + K::STAGES_AT + stage * K::codes::PAGE_BYTES;
			view.turned = turned + stage * (K::KEY_QUERY_BYTES / 16);
			view.position = (item.tile_begin + n) * QMK_TILE;
			view.prob = prob + buffer * K::N * 128;
			barrier_wait(bars + 16 * stage, parity);
			consume_page<K>(view, shared, at, run, out);
			__syncwarp();
			if (at.lane == 0)
				barrier_arrive(bars + 16 * stage + 8);
			buffer ^= 1;
			stage += K::LANES;
			if (stage >= K::STAGES) {
				stage -= K::STAGES;
				parity ^= 1;
			}
		}
		wgmma_wait<0>();
		pages_before += pages;
		if (K::LANES > 1)
			join_groups<K>(base, at, run, out, exchanges);
		if (at.lane_set == 0)
			write_item<K>(p, target_of<K>(p, item, s), shared, at, run, out);
	}
}

template <class K>
static __global__ void __launch_bounds__(K::THREADS, 1)
	hopper_kernel(const __grid_constant__ attend_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL /* other targets get an empty body and never launch it */
	extern __shared__ __align__(1024) uint8_t shared[];
	const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
	const uint32_t bars = base + K::BARRIERS_AT;
	const uint32_t group = __shfl_sync(~0u, threadIdx.x / 128, 0);

	if (threadIdx.x == 0) {
		for (int i = 0; i < K::STAGES; i++) {
			barrier_init(bars + 16 * i, 1 + TURN_THREADS / 32);
			barrier_init(bars + 16 * i + 8, 4 * K::HEADSPLIT);
		}
		barrier_init(bars + 16 * K::STAGES, 1);
		for (int i = 0; i < 2 * (K::LANES - 1); i++)
			barrier_init(base + K::JOIN_BARRIERS + 8 * i, 128);
		async_proxy_fence();
	}
	for (uint32_t i = threadIdx.x; i < 512; i += K::THREADS)
		((uint4 *)(shared + K::TURNS))[i] = p.plan.token_turns[i];
	/* means[q][chunk][step]: the two halves are the codes (step, step + 4). */
	if (threadIdx.x < 32) {
		const uint32_t q = threadIdx.x / 8, chunk = threadIdx.x / 4 % 2,
			       step = threadIdx.x % 4;
		const uint32_t dim = 32 * chunk + 8 * q + step;

		((uint32_t *)(shared + K::MEANS))[threadIdx.x] =
			p.rope_mean ? pack_half2(p.rope_mean[dim], p.rope_mean[dim + 4]) : 0;
	}
	__syncthreads();
	if (group == 0) {
		registers_lower<K::PRODUCER_REGISTERS>();
		if (threadIdx.x == 0) {
			produce<K>(p, base);
		} else if (threadIdx.x >= 32 && threadIdx.x < 32 + TURN_THREADS) {
			turn_queries<K>(p, base);
		} else if (threadIdx.x == 127) {
			/*
			 * The next kernel may begin once the ones before this have ended: it
			 * waits for this one only before it exits.
			 */
			grid_wait();
			grid_launch_dependents();
		}
		return;
	}
	registers_raise<K::REGISTERS>();
	{
		place at;

		at.base = base;
		at.group = group - 1;
		at.lane_set = at.group / K::HEADSPLIT;
		at.head_part = at.group % K::HEADSPLIT;
		at.thread = threadIdx.x % 128;
		at.warp = at.thread / 32;
		at.lane = at.thread % 32;
		at.g = at.lane / 4;
		at.q = at.lane % 4;
		at.barrier = 1 + at.group;
		consume<K>(p, shared, base, at);
	}
#endif
}

/* ---- Host ---- */

/* 3 * 160 + 32 and 2 * 232 + 40 registers of 128 threads: what the launch gets in all. */
template <int BITS, int PLANES, bool HALF>
using shape16 = kernel_shape<BITS, 16, 3, 1, PLANES, 160, 32, HALF>;
template <int BITS, int PLANES, bool HALF>
using shape32 = kernel_shape<BITS, 32, 2, 1, PLANES, 232, 40, HALF>;
template <int BITS, int PLANES, bool HALF>
using shape64 = kernel_shape<BITS, 32, 2, 2, PLANES, 232, 40, HALF>;

static bool narrow_queries(const struct qmk_attend_args *args)
{
	return args->query_bits == 8;
}

bool attend_hopper_fits(const struct qmk_attend_args *args)
{
	int device, major, minor;

	if (!args->layout || args->layout->content_dim != DC || args->layout->rope_dim != DR ||
	    args->layout->format == QMK_FORMAT_PAPER_C4R4 || args->query_bits == 16)
		return false;
	return cudaGetDevice(&device) == cudaSuccess &&
	       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
		       cudaSuccess &&
	       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
		       cudaSuccess &&
	       major == 9 && minor == 0;
}

uint32_t attend_hopper_rows(uint32_t rows)
{
	return rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

uint32_t attend_hopper_lanes(uint32_t group_rows)
{
	(void)group_rows;
	return 1;
}

uint32_t attend_hopper_image_bytes(const struct qmk_attend_args *args)
{
	return narrow_queries(args) ? shape16<4, 1, false>::IMAGE : shape16<4, 2, false>::IMAGE;
}

template <class K> static qmla_status_t launch(const attend_params &p, cudaStream_t stream)
{
	qmla_status_t status = qmk_cuda_status(cudaFuncSetAttribute(
		hopper_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, K::BYTES));

	if (status == QMLA_OK)
		status = qmk_share_like_hopper((const void *)stage_kernel<K>);
	if (status == QMLA_OK)
		status = qmk_share_like_hopper((const void *)hopper_kernel<K>);
	if (status != QMLA_OK)
		return status;
	status = qmk_launch(stage_kernel<K>, dim3(p.shape.entities * K::ROWS / 4), 128, 0, true,
			    stream, p);
	if (status != QMLA_OK)
		return status;
	return qmk_launch(hopper_kernel<K>, dim3(p.shape.parts), K::THREADS, K::BYTES, true, stream,
			  p);
}

template <int BITS, int PLANES, bool HALF>
static qmla_status_t launch_rows(const attend_params &p, cudaStream_t stream)
{
	if (p.shape.rows == 16)
		return launch<shape16<BITS, PLANES, HALF>>(p, stream);
	if (p.shape.rows == 32)
		return launch<shape32<BITS, PLANES, HALF>>(p, stream);
	return launch<shape64<BITS, PLANES, HALF>>(p, stream);
}

template <int BITS, int PLANES>
static qmla_status_t launch_pairing(const attend_params &p, cudaStream_t stream)
{
	return p.rope.pairing == QMK_HALF_SPLIT ? launch_rows<BITS, PLANES, true>(p, stream)
						: launch_rows<BITS, PLANES, false>(p, stream);
}

qmla_status_t attend_hopper_launch(const attend_params &p, cudaStream_t stream)
{
	const bool narrow = narrow_queries(&p.args);

	if (p.layout.content_bits == 2)
		return narrow ? launch_pairing<2, 1>(p, stream) : launch_pairing<2, 2>(p, stream);
	return narrow ? launch_pairing<4, 1>(p, stream) : launch_pairing<4, 2>(p, stream);
}
