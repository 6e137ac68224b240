/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/pack.cuh"

#include "kernels/cuda/pack_feedback.cuh"
#include "kernels/cuda/pack_paper.cuh"

#define HALVES (QMK_PAGE_TOKENS / TOKENS)
#define SLICES (QMK_PAGE_TOKENS / SLICE)

/* One CTA a plane of half a page. */
static __global__ void __launch_bounds__(THREADS)
	pack_plain_kernel(const __grid_constant__ pack_params params)
{
	extern __shared__ __align__(16) uint8_t raw[];
	const uint32_t n = blockIdx.x / HALVES;
	const page_rows rows = {(uint64_t)n * QMK_PAGE_TOKENS, params.dtype};
	const slice to = {qmk_page(params.pool, params.layout, params.slots[n], params.layer),
			  blockIdx.x % HALVES * TOKENS, TOKENS};
	const plane &p = params.planes[blockIdx.y];

	load_plane(p, rows, to, (float *)raw);
	pack_values(p, to, (float *)raw);
}

/* One CTA eight tokens. */
static __global__ void __launch_bounds__(THREADS, 2)
	pack_feedback_kernel(const __grid_constant__ pack_params params)
{
	extern __shared__ __align__(16) uint8_t raw[];
	const uint32_t n = blockIdx.x / SLICES;
	const page_rows rows = {(uint64_t)n * QMK_PAGE_TOKENS, params.dtype};
	const slice to = {qmk_page(params.pool, params.layout, params.slots[n], params.layer),
			  blockIdx.x % SLICES * SLICE, SLICE};

	pack_slice(params, rows, to, raw);
}

static __global__ void __launch_bounds__(THREADS)
	pack_paper_kernel(const __grid_constant__ pack_params params)
{
	const page_rows rows = {(uint64_t)blockIdx.x * QMK_PAGE_TOKENS, params.dtype};

	const uint32_t token = blockIdx.y * (THREADS / 32) + threadIdx.x / 32;
	uint8_t *page =
		qmk_page(params.pool, params.layout, params.slots[blockIdx.x], params.layer);

	pack_paper_plane(params, rows, page, token, false);
	pack_paper_plane(params, rows, page, token, true);
}

size_t qmk_cuda_pack_workspace(const struct qmk_pack_args *args)
{
	(void)args;
	return 0; /* shared memory is enough */
}

static qmla_status_t launch(void (*kernel)(pack_params), dim3 grid, const pack_params &params,
			    cudaStream_t stream)
{
	const size_t bytes = pack_shared_bytes(params);
	const qmla_status_t status = pack_prepare(kernel, bytes);

	if (status != QMLA_OK)
		return status;
	return qmk_launch(kernel, grid, THREADS, bytes, false, stream, params);
}

qmla_status_t qmk_cuda_pack(const struct qmk_pack_args *args)
{
	cudaStream_t stream = (cudaStream_t)args->stream;
	pack_params params = {};
	qmla_status_t status;

	if (!args->slots)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = pack_check(args);
	if (status != QMLA_OK)
		return status;
	if (args->pages == 0)
		return QMLA_OK;
	params = pack_params_of(args);
	if (args->layout->format == QMK_FORMAT_PAPER_C4R4)
		return launch(pack_paper_kernel,
			      dim3(args->pages, QMK_PAGE_TOKENS / (THREADS / 32)), params, stream);
	if (wants_feedback(params))
		return launch(pack_feedback_kernel, dim3(args->pages * SLICES), params, stream);
	return launch(pack_plain_kernel, dim3(args->pages * HALVES, 2), params, stream);
}
