/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/plan.cuh"

#include <math_constants.h>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/attend_params.cuh"

#define PLAN_THREADS 1024
/*
 * What starting an item costs, in tiles: loading queries, filling the pipeline,
 * writing a partial result (docs/measurements/attention.md).
 */
#define ITEM_OVERHEAD 2u

static uint32_t divide_up(uint32_t a, uint32_t b)
{
	return a / b + (a % b != 0);
}

qmla_status_t qmk_plan_shape_of(const struct qmk_attend_args *args, struct qmk_plan_shape *shape)
{
	uint32_t queries = args->max_queries ? args->max_queries : args->rows;
	uint64_t rows = (uint64_t)queries * args->heads;
	int device;
	int processors;
	qmla_status_t status;

	if (args->batch == 0 || args->heads == 0 || rows == 0 || rows > 1u << 20)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmk_cuda_status(cudaGetDevice(&device));
	if (status == QMLA_OK)
		status = qmk_cuda_status(cudaDeviceGetAttribute(
			&processors, cudaDevAttrMultiProcessorCount, device));
	if (status != QMLA_OK)
		return status;
	shape->rows = qmk_attend_group_rows(args, (uint32_t)rows);
	shape->groups = divide_up((uint32_t)rows, shape->rows);
	shape->entities = args->batch * shape->groups;
	shape->parts = (uint32_t)processors * qmk_attend_parts_per_sm(args, shape->rows);
	if (shape->parts > QMK_PLAN_PARTS_MAX)
		shape->parts = QMK_PLAN_PARTS_MAX;
	shape->lanes = qmk_attend_lanes(args, shape->rows);
	shape->splits = (shape->entities + shape->parts) * shape->lanes + shape->entities;
	shape->pages = divide_up(args->max_total, QMK_TILE) + 1;
	return QMLA_OK;
}

static void *take(void *base, size_t *used, size_t bytes)
{
	void *here = base ? (uint8_t *)base + *used : NULL;

	*used += (bytes + 255) & ~(size_t)255;
	return here;
}

size_t qmk_plan_layout(const struct qmk_attend_args *args, const struct qmk_plan_shape *shape,
		       void *base, struct qmk_plan *plan)
{
	const uint32_t dim = args->layout->content_dim;
	const size_t rows = (size_t)shape->splits * shape->rows;
	struct qmk_plan p = {};
	size_t used = 0;

	p.items =
		(qmk_item *)take(base, &used, (shape->entities + shape->parts) * sizeof(qmk_item));
	p.part_begin = (uint32_t *)take(base, &used, (shape->parts + 1) * sizeof(uint32_t));
	p.bf16_split = (uint32_t *)take(base, &used, shape->entities * sizeof(uint32_t));
	p.entities = (qmk_entity *)take(base, &used, shape->entities * sizeof(qmk_entity));
	if (attend_hopper_fits(args)) {
		size_t staged = (size_t)shape->entities * shape->rows;

		p.page_turns = (uint4 *)take(base, &used, (size_t)shape->pages * 8 * sizeof(uint4));
		p.token_turns = (uint4 *)take(base, &used, 512 * sizeof(uint4));
		p.query_image =
			(uint8_t *)take(base, &used, staged * attend_hopper_image_bytes(args));
		p.query_factors = (float2 *)take(base, &used, staged * sizeof(float2));
	}
	p.partial = (float *)take(base, &used, rows * dim * sizeof(float));
	p.partial_lse = (float *)take(base, &used, rows * sizeof(float));
	if (plan)
		*plan = p;
	return used;
}

/* Exclusive prefix sum over the CTA; @total receives the sum. */
static __device__ uint32_t scan(uint32_t value, uint32_t *total)
{
	__shared__ uint32_t warp_sum[PLAN_THREADS / 32];
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t warp = threadIdx.x / 32;
	uint32_t inclusive = value;

	for (int step = 1; step < 32; step *= 2) {
		uint32_t other = __shfl_up_sync(~0u, inclusive, step);

		if (lane >= (uint32_t)step)
			inclusive += other;
	}
	if (lane == 31)
		warp_sum[warp] = inclusive;
	__syncthreads();
	if (warp == 0) {
		uint32_t sum = warp_sum[lane];

		for (int step = 1; step < 32; step *= 2) {
			uint32_t other = __shfl_up_sync(~0u, sum, step);

			if (lane >= (uint32_t)step)
				sum += other;
		}
		warp_sum[lane] = sum;
	}
	__syncthreads();
	*total = warp_sum[PLAN_THREADS / 32 - 1];
	inclusive += warp ? warp_sum[warp - 1] : 0;
	__syncthreads();
	return inclusive - value;
}

/* First page with a packed token to attend, and the page past the last. */
static __device__ void packed_pages(const qmk_sequence &s, uint32_t *begin, uint32_t *end)
{
	const uint32_t first = max(s.sink, qmk_key_begin(s)),
		       last = min(s.packed_end, qmk_key_end(s));

	*begin = first / QMK_TILE;
	*end = last > first ? (last + QMK_TILE - 1) / QMK_TILE : *begin;
}

static __device__ uint32_t entity_tiles(const qmk_sequence &s, uint32_t group, uint32_t heads,
					uint32_t rows, uint32_t *begin)
{
	uint32_t end;

	packed_pages(s, begin, &end);
	return group * rows < s.queries * heads ? end - *begin : 0;
}

static __global__ void __launch_bounds__(PLAN_THREADS)
	plan_kernel(const qmk_sequence *sequences, uint32_t heads, qmk_plan_shape shape,
		    qmk_plan plan)
{
	__shared__ uint32_t cost_base, split_base, item_base, largest_cost;
	__shared__ uint32_t begins[PLAN_THREADS]; /* first item of each part */
	uint32_t total_cost = 0;
	uint32_t payload;

	begins[threadIdx.x] = UINT32_MAX;
	if (threadIdx.x == 0)
		largest_cost = 0;
	__syncthreads();

	/* Pass 1: the whole cost, for an equal share a part. */
	for (uint32_t first = 0; first < shape.entities; first += PLAN_THREADS) {
		uint32_t e = first + threadIdx.x;
		uint32_t cost = 0;
		uint32_t begin;
		uint32_t sum;

		if (e < shape.entities) {
			uint32_t tiles = entity_tiles(sequences[e / shape.groups], e % shape.groups,
						      heads, shape.rows, &begin);
			cost = tiles ? tiles + ITEM_OVERHEAD : 0;
			atomicMax(&largest_cost, cost);
		}
		scan(cost, &sum);
		total_cost += sum;
	}
	payload = max((total_cost + shape.parts - 1) / shape.parts, ITEM_OVERHEAD + 1);
	/* Where whole entities are nearly equal shares, cutting them costs more than it evens out.
	 */
	if (largest_cost) {
		uint32_t whole = (payload + largest_cost - 1) / largest_cost * largest_cost;

		if (whole - payload <= payload / 32)
			payload = whole;
	}
	if (threadIdx.x == 0)
		cost_base = split_base = item_base = 0;
	__syncthreads();

	/* Pass 2: each entity cuts its own tiles at the parts' borders. */
	for (uint32_t first = 0; first < shape.entities; first += PLAN_THREADS) {
		uint32_t e = first + threadIdx.x;
		uint32_t begin = 0, tiles = 0, cost = 0, cuts = 0, bf16 = 0;
		uint32_t start, first_part = 0, split, item, sum_cost, sum_split, sum_item;

		if (e < shape.entities) {
			const qmk_sequence &s = sequences[e / shape.groups];

			tiles = entity_tiles(s, e % shape.groups, heads, shape.rows, &begin);
			cost = tiles ? tiles + ITEM_OVERHEAD : 0;
			bf16 = e % shape.groups * shape.rows < s.queries * heads &&
			       (s.sink > 0 || s.total > s.packed_end);
		}
		start = cost_base + scan(cost, &sum_cost) + ITEM_OVERHEAD;
		if (tiles) {
			first_part = start / payload;
			cuts = (start + tiles - 1) / payload - first_part + 1;
		}
		split = split_base + scan(cuts * shape.lanes + bf16, &sum_split);
		item = item_base + scan(cuts, &sum_item);
		for (uint32_t k = 0; k < cuts; k++) {
			uint32_t border = (first_part + k) * payload;
			uint32_t from = border > start ? border - start : 0;
			uint32_t to = min(border + payload - start, tiles);

			plan.items[item + k] = {e, begin + from, begin + to,
						split + k * shape.lanes};
			atomicMin(&begins[first_part + k], item + k);
		}
		if (e < shape.entities) {
			plan.entities[e] = {e / shape.groups, e % shape.groups, split,
					    cuts * shape.lanes + bf16};
			plan.bf16_split[e] = bf16 ? split + cuts * shape.lanes : UINT32_MAX;
		}
		__syncthreads();
		if (threadIdx.x == 0) {
			cost_base += sum_cost;
			split_base += sum_split;
			item_base += sum_item;
		}
		__syncthreads();
	}

	/* A part without items begins where the next one does: a suffix minimum. */
	if (threadIdx.x >= shape.parts)
		begins[threadIdx.x] = item_base;
	__syncthreads();
	for (uint32_t step = 1; step < PLAN_THREADS; step *= 2) {
		uint32_t other =
			threadIdx.x + step < PLAN_THREADS ? begins[threadIdx.x + step] : item_base;

		__syncthreads();
		begins[threadIdx.x] = min(begins[threadIdx.x], other);
		__syncthreads();
	}
	if (threadIdx.x < shape.parts)
		plan.part_begin[threadIdx.x] = begins[threadIdx.x];
	if (threadIdx.x == 0)
		plan.part_begin[shape.parts] = item_base;
}

/*
 * The Hopper kernel turns a query back by the page's angle and a key by its place there. A
 * thread of the wgmma A fragment holds, of a token, eight pairs of frequencies as four
 * half2 couples (x, y); couple u of quad lane q has the frequencies turn_pair(u, q, 0)
 * and turn_pair(u, q, 1) in its two halves.
 */
static __device__ uint32_t turn_pair(uint32_t u, uint32_t q, uint32_t half, bool half_split)
{
	return half_split ? 8 * q + u + 4 * half : 16 * (u / 2) + 4 * q + u % 2 + 2 * half;
}

/* cos and sin of position * inv_freq for couples u and u + 1: {cos, sin, cos, sin} as half2. */
static __device__ uint4 turns(const qmk_rope &rope, uint32_t position, uint32_t q, uint32_t u,
			      float amplitude)
{
	uint32_t word[4];

	for (uint32_t i = 0; i < 2; i++) {
		float c[2], s[2];

		for (uint32_t half = 0; half < 2; half++) {
			uint32_t pair = turn_pair(u + i, q, half, rope.pairing == QMK_HALF_SPLIT);
			/* In double: a float product loses the fraction past some ten thousand
			 * tokens. */
			double full = (double)position * (double)rope.inv_freq[pair] *
				      0.15915494309189533577;

			sincospif(2.f * (float)(full - rint(full)), &s[half], &c[half]);
		}
		__half2 cosine = __floats2half2_rn(c[0] * amplitude, c[1] * amplitude);
		__half2 sine = __floats2half2_rn(s[0] * amplitude, s[1] * amplitude);

		word[2 * i] = *(uint32_t *)&cosine;
		word[2 * i + 1] = *(uint32_t *)&sine;
	}
	return make_uint4(word[0], word[1], word[2], word[3]);
}

/*
 * page_turns[page][u]: cos, then sin, of couple u of all four quad lanes at position
 * 64 * page, in the order of a 16-byte unit of the staged query.
 * token_turns[v][thread]: of warpgroup thread (warp, g, q), token 16 * warp + g (v < 2)
 * or that plus 8, couples 2(v % 2) and the next; the amplitude is multiplied in here.
 */
static __global__ void turn_kernel(const __grid_constant__ qmk_rope rope, uint32_t pages,
				   qmk_plan plan)
{
	const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < pages * 4) {
		uint32_t cosine[4], sine[4];

		for (uint32_t q = 0; q < 4; q++) {
			/* Couples come in twos; this one is in its upper or lower half. */
			uint4 two = turns(rope, i / 4 * QMK_TILE, q, i % 4 / 2 * 2, 1.f);

			cosine[q] = i % 2 ? two.z : two.x;
			sine[q] = i % 2 ? two.w : two.y;
		}
		plan.page_turns[2 * i] = make_uint4(cosine[0], cosine[1], cosine[2], cosine[3]);
		plan.page_turns[2 * i + 1] = make_uint4(sine[0], sine[1], sine[2], sine[3]);
	} else if (i < pages * 4 + 512) {
		uint32_t v = (i - pages * 4) / 128;
		uint32_t thread = (i - pages * 4) % 128;
		uint32_t token = thread / 32 * 16 + thread % 32 / 4 + v / 2 * 8;

		plan.token_turns[i - pages * 4] =
			turns(rope, token, thread % 4, v % 2 * 2, rope.amplitude);
	}
}

qmla_status_t qmk_cuda_plan(const struct qmk_attend_args *args)
{
	cudaStream_t stream = (cudaStream_t)args->stream;
	qmk_plan_shape shape;
	qmk_plan plan;
	qmla_status_t status;

	if (!args->layout || !args->sequences || !args->rope || !args->workspace)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmk_plan_shape_of(args, &shape);
	if (status != QMLA_OK)
		return status;
	if (qmk_plan_layout(args, &shape, args->workspace, &plan) > args->workspace_bytes)
		return QMLA_ERR_INVALID_ARGUMENT;
	plan_kernel<<<1, PLAN_THREADS, 0, stream>>>(args->sequences, args->heads, shape, plan);
	if (attend_hopper_fits(args))
		turn_kernel<<<divide_up(shape.pages * 4 + 512, 128), 128, 0, stream>>>(
			*args->rope, shape.pages, plan);
	return qmk_cuda_status(cudaGetLastError());
}
