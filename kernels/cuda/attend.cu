/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attend slot: picks the kernels, then joins their partial results. Packed tiles go
 * to the Hopper kernel where it fits, else to the generic one, which also takes the
 * BF16 rows (sink, tail, recent window) everywhere.
 */
#include "kernels/cuda/attend.cuh"

#include <math_constants.h>

#include "kernels/cuda/attend_params.cuh"

/* Joins an entity's splits: one CTA a row of a group. */
static __global__ void combine_kernel(const __grid_constant__ attend_params p)
{
	const uint32_t e = blockIdx.x / p.shape.rows;
	const uint32_t row = blockIdx.x % p.shape.rows;
	const qmk_entity entity = p.plan.entities[e];
	const qmk_sequence s = p.args.sequences[entity.sequence];
	const uint32_t offset = entity.group * p.shape.rows + row;
	const uint32_t dim = p.layout.content_dim;
	const uint64_t target = (uint64_t)s.query_row * p.args.heads + offset;
	float largest = -CUDART_INF_F;
	float total = 0.f;

	if (offset >= s.queries * p.args.heads)
		return;
	for (uint32_t i = 0; i < entity.splits; i++)
		largest =
			fmaxf(largest,
			      p.plan.partial_lse[(uint64_t)(entity.first_split + i) * p.shape.rows +
						 row]);
	for (uint32_t i = 0; i < entity.splits; i++) {
		float lse =
			p.plan.partial_lse[(uint64_t)(entity.first_split + i) * p.shape.rows + row];

		total += lse == -CUDART_INF_F ? 0.f : exp2f(lse - largest);
	}
	for (uint32_t c = threadIdx.x; c < dim; c += blockDim.x) {
		float sum = 0.f;

		for (uint32_t i = 0; i < entity.splits; i++) {
			uint64_t at = (uint64_t)(entity.first_split + i) * p.shape.rows + row;

			if (p.plan.partial_lse[at] != -CUDART_INF_F)
				sum += exp2f(p.plan.partial_lse[at] - largest) *
				       p.plan.partial[at * dim + c];
		}
		sum = total > 0.f ? sum / total : 0.f;
		qmk_store(p.args.output, target * dim + c, p.args.output_dtype,
			  sum + (p.content_mean ? p.content_mean[c] : 0.f));
	}
	if (threadIdx.x == 0 && p.args.lse)
		p.args.lse[target] = total > 0.f ? largest + log2f(total) : -CUDART_INF_F;
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

qmla_status_t qmk_cuda_attend(const struct qmk_attend_args *args)
{
	cudaStream_t stream = (cudaStream_t)args->stream;
	attend_params p = {};
	qmla_status_t status;

	if (!args->layout || !args->rope || !args->sequences || !args->pool.base ||
	    !args->query_content || !args->query_rope || !args->output || !args->workspace ||
	    args->layer >= args->layout->layers)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmk_plan_shape_of(args, &p.shape);
	if (status != QMLA_OK)
		return status;
	if (qmk_plan_layout(args, &p.shape, args->workspace, &p.plan) > args->workspace_bytes)
		return QMLA_ERR_INVALID_ARGUMENT;
	p.args = *args;
	p.layout = *args->layout;
	p.rope = *args->rope;
	if (args->constants && !p.layout.rope_rotated) {
		p.rope_mean = args->constants->rope_mean;
		p.content_mean = args->constants->content_mean;
	}
	if (attend_hopper_fits(args)) {
		status = attend_generic_launch(p, false, stream);
		if (status == QMLA_OK)
			status = attend_hopper_launch(p, stream);
	} else {
		status = attend_generic_launch(p, true, stream);
	}
	if (status != QMLA_OK)
		return status;
	combine_kernel<<<p.shape.entities * p.shape.rows, 128, 0, stream>>>(p);
	return qmk_cuda_status(cudaGetLastError());
}
