/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attend slot: picks the kernels, then joins their partial results. Packed tiles go
 * to the Hopper kernel where it fits, else to the generic one, which also takes the
 * BF16 rows (sink, tail, recent window) everywhere.
 */
#include "kernels/cuda/attend.cuh"

#include <math_constants.h>

#include "kernels/cuda/attend_params.cuh"
#include "kernels/cuda/baseline.h"

#define COMBINE_SPLITS 512u /* weights kept in shared memory at a time */

/* Weight of a partial result beside @largest, 0 where it saw no token. */
static __device__ __forceinline__ float weight_of(float lse, float largest)
{
	return lse == -CUDART_INF_F ? 0.f : exp2f(lse - largest);
}

/* Largest of a value over the CTA. */
static __device__ float largest_of(float value)
{
	__shared__ float warp_largest[32];

	for (int step = 16; step; step /= 2)
		value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
	if (threadIdx.x % 32 == 0)
		warp_largest[threadIdx.x / 32] = value;
	__syncthreads();
	value = warp_largest[0];
	for (uint32_t w = 1; w < blockDim.x / 32; w++)
		value = fmaxf(value, warp_largest[w]);
	return value;
}

/*
 * Joins an entity's splits. A CTA takes a row and 4 * WIDTH columns: GROUPS groups of
 * WIDTH threads take every GROUPS-th split, each thread four columns.
 */
template <int GROUPS, int WIDTH>
static __global__ void __launch_bounds__(GROUPS *WIDTH)
	combine_kernel(const __grid_constant__ attend_params p)
{
	__shared__ float4 sums[GROUPS][WIDTH];
	__shared__ float weights[COMBINE_SPLITS];
	const uint32_t e = blockIdx.x / p.shape.rows;
	const uint32_t row = blockIdx.x % p.shape.rows;
	const uint32_t group = threadIdx.x / WIDTH, lane = threadIdx.x % WIDTH;
	const uint32_t dim = p.layout.content_dim;
	const uint32_t column = blockIdx.y * 4 * WIDTH + lane * 4;
	float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
	float largest = -CUDART_INF_F;
	float total = 0.f;

	grid_wait();
	grid_launch_dependents();
	const qmk_entity entity = p.plan.entities[e];

	/* A whole entity in one packed item is written by the Hopper kernel itself. */
	if (p.whole && entity.splits == 1 && p.plan.bf16_split[e] == UINT32_MAX)
		return;
	const qmk_sequence s = p.args.sequences[entity.sequence];
	const uint32_t offset = entity.group * p.shape.rows + row;
	const uint64_t target = (uint64_t)s.query_row * p.args.heads + offset;
	const float *lse = p.plan.partial_lse + (uint64_t)entity.first_split * p.shape.rows + row;
	const float *partial =
		p.plan.partial + ((uint64_t)entity.first_split * p.shape.rows + row) * dim + column;

	if (offset >= s.queries * p.args.heads)
		return;
	for (uint32_t i = threadIdx.x; i < entity.splits; i += blockDim.x)
		largest = fmaxf(largest, lse[(uint64_t)i * p.shape.rows]);
	largest = largest_of(largest);
	for (uint32_t i = threadIdx.x; i < min(entity.splits, COMBINE_SPLITS); i += blockDim.x)
		weights[i] = weight_of(lse[(uint64_t)i * p.shape.rows], largest);
	__syncthreads();
#pragma unroll 4
	for (uint32_t i = group; i < entity.splits; i += GROUPS) {
		const float w = i < COMBINE_SPLITS
					? weights[i]
					: weight_of(lse[(uint64_t)i * p.shape.rows], largest);

		/* A part that saw no token left its columns unwritten. */
		if (w > 0.f && column < dim) {
			const float4 v =
				*(const float4 *)(partial + (uint64_t)i * p.shape.rows * dim);

			sum.x = fmaf(w, v.x, sum.x);
			sum.y = fmaf(w, v.y, sum.y);
			sum.z = fmaf(w, v.z, sum.z);
			sum.w = fmaf(w, v.w, sum.w);
		}
	}
	sums[group][lane] = sum;
	for (uint32_t i = 0; i < entity.splits; i++)
		total += i < COMBINE_SPLITS ? weights[i]
					    : weight_of(lse[(uint64_t)i * p.shape.rows], largest);
	__syncthreads();
	if (group == 0 && column < dim) {
		const float scale = total > 0.f ? 1.f / total : 0.f;
		/* A query that saw no key has an output of zeros. */
		const float *mean = p.content_mean && total > 0.f ? p.content_mean + column : NULL;

		for (int g = 1; g < GROUPS; g++) {
			const float4 v = sums[g][lane];

			sum.x += v.x;
			sum.y += v.y;
			sum.z += v.z;
			sum.w += v.w;
		}
		qmk_store4(p.args.output, target * dim + column, p.args.output_dtype,
			   make_float4(sum.x * scale + (mean ? mean[0] : 0.f),
				       sum.y * scale + (mean ? mean[1] : 0.f),
				       sum.z * scale + (mean ? mean[2] : 0.f),
				       sum.w * scale + (mean ? mean[3] : 0.f)));
	}
	if (threadIdx.x == 0 && blockIdx.y == 0 && p.args.lse)
		p.args.lse[target] = total > 0.f ? largest + log2f(total) : -CUDART_INF_F;
}

template <int GROUPS, int WIDTH>
static qmla_status_t launch_combine(const attend_params &p, cudaStream_t stream)
{
	qmla_status_t status = qmk_share_like_hopper((const void *)combine_kernel<GROUPS, WIDTH>);

	if (status != QMLA_OK)
		return status;
	return qmk_launch(combine_kernel<GROUPS, WIDTH>,
			  dim3(p.shape.entities * p.shape.rows,
			       (p.layout.content_dim + 4 * WIDTH - 1) / (4 * WIDTH)),
			  GROUPS * WIDTH, 0, true, stream, p);
}

uint32_t qmk_attend_group_rows(const struct qmk_attend_args *args, uint32_t rows)
{
	return attend_hopper_fits(args) ? attend_hopper_rows(rows) : 16;
}

uint32_t qmk_attend_lanes(const struct qmk_attend_args *args, uint32_t group_rows)
{
	return attend_hopper_fits(args) ? attend_hopper_lanes(group_rows) : 1;
}

uint32_t qmk_attend_parts_per_sm(const struct qmk_attend_args *args, uint32_t group_rows)
{
	(void)group_rows;
	return attend_hopper_fits(args) ? 1 : 2;
}

size_t qmk_cuda_attend_workspace(const struct qmk_attend_args *args)
{
	qmk_plan_shape shape;

	if (!args->layout || qmk_plan_shape_of(args, &shape) != QMLA_OK)
		return 0;
	return qmk_plan_layout(args, &shape, NULL, NULL);
}

/* The checks and the parameters that every attend shares. */
static qmla_status_t params_of(const struct qmk_attend_args *args, attend_params *params)
{
	attend_params p = {};
	qmla_status_t status;

	if (!args->layout || !args->rope || !args->sequences || !args->pool.base ||
	    !args->query_content || !args->query_rope || !args->output || !args->workspace ||
	    args->layer >= args->layout->layers)
		return QMLA_ERR_INVALID_ARGUMENT;
	/* Rows are read and written 16 bytes at a time. */
	if (((uintptr_t)args->query_content | (uintptr_t)args->query_rope |
	     (uintptr_t)args->output | (uintptr_t)args->pool.base | (uintptr_t)args->workspace) %
	    16)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmk_plan_shape_of(args, &p.shape);
	if (status != QMLA_OK)
		return status;
	if (qmk_plan_layout(args, &p.shape, args->workspace, &p.plan) > args->workspace_bytes)
		return QMLA_ERR_INVALID_ARGUMENT;
	p.args = *args;
	p.layout = *args->layout;
	p.rope = *args->rope;
	p.whole = attend_hopper_fits(args);
	if (args->constants && !p.layout.rope_rotated) {
		p.rope_mean = args->constants->rope_mean;
		p.content_mean = args->constants->content_mean;
	}
	*params = p;
	return QMLA_OK;
}

/* The fewer rows, the more splits each has: more threads and CTAs a row. */
static qmla_status_t combine(const attend_params &p, cudaStream_t stream)
{
	if (p.shape.entities * p.shape.rows <= p.shape.parts / 2)
		return launch_combine<32, 32>(p, stream);
	if (p.shape.entities * p.shape.rows < 2 * p.shape.parts)
		return launch_combine<8, 128>(p, stream);
	return launch_combine<1, 128>(p, stream);
}

qmla_status_t qmk_cuda_attend(const struct qmk_attend_args *args)
{
	cudaStream_t stream = (cudaStream_t)args->stream;
	attend_params p;
	qmla_status_t status = params_of(args, &p);

	if (status != QMLA_OK)
		return status;
	status = attend_hopper_fits(args) ? attend_hopper_launch(p, stream)
					  : attend_generic_launch(p, ATTEND_PACKED, stream);
	if (status == QMLA_OK)
		status = attend_generic_launch(p, ATTEND_BF16, stream);
	return status == QMLA_OK ? combine(p, stream) : status;
}

qmla_status_t qmk_cuda_attend_baseline(const struct qmk_attend_args *args)
{
	cudaStream_t stream = (cudaStream_t)args->stream;
	attend_params p;
	qmla_status_t status = params_of(args, &p);

	if (status == QMLA_OK && (!attend_hopper_fits(args) || args->constants ||
				  args->pool.stride < QMK_BASELINE_PAGE_BYTES))
		status = QMLA_ERR_UNSUPPORTED;
	if (status == QMLA_OK)
		status = attend_baseline_launch(p, stream);
	return status == QMLA_OK ? combine(p, stream) : status;
}
