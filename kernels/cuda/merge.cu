/* SPDX-License-Identifier: Apache-2.0 */
/* Joins partial softmax results: one CTA a row. Base-2 log-sum-exp throughout. */
#include "kernels/cuda/merge.cuh"

#include <math_constants.h>

#include "kernels/cuda/device.cuh"

static __global__ void merge_kernel(struct qmk_merge_args args)
{
	const uint32_t row = blockIdx.x;
	float largest = -CUDART_INF_F;
	float total = 0.f;

	for (uint32_t part = 0; part < args.parts; part++)
		largest = fmaxf(largest, args.lse[(uint64_t)part * args.rows + row]);
	for (uint32_t part = 0; part < args.parts; part++) {
		float lse = args.lse[(uint64_t)part * args.rows + row];

		total += lse == -CUDART_INF_F ? 0.f : exp2f(lse - largest);
	}
	for (uint32_t i = threadIdx.x; i < args.content_dim; i += blockDim.x) {
		float sum = 0.f;

		for (uint32_t part = 0; part < args.parts; part++) {
			uint64_t at = (uint64_t)part * args.rows + row;

			if (args.lse[at] != -CUDART_INF_F)
				sum += exp2f(args.lse[at] - largest) *
				       args.outputs[at * args.content_dim + i];
		}
		args.output[(uint64_t)row * args.content_dim + i] = total > 0.f ? sum / total : 0.f;
	}
	if (threadIdx.x == 0 && args.output_lse)
		args.output_lse[row] = total > 0.f ? largest + log2f(total) : -CUDART_INF_F;
}

qmla_status_t qmk_cuda_merge(const struct qmk_merge_args *args)
{
	if (!args->outputs || !args->lse || !args->output || args->parts == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (args->rows == 0)
		return QMLA_OK;
	merge_kernel<<<args->rows, 128, 0, (cudaStream_t)args->stream>>>(*args);
	return qmk_cuda_status(cudaGetLastError());
}
