/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode tokens to BF16 tails; tails that fill are packed in the same launch. A CTA has half
 * a tail (an eighth with feedback), and reads and writes nothing of the others': new rows are taken
 * from the input, not from what another CTA stores.
 */
#include "kernels/cuda/append.cuh"

#include "kernels/cuda/pack_feedback.cuh"
#include "kernels/cuda/pack_paper.cuh"

struct append_params {
	pack_params pack;
	const qmk_tail *tails;
	uint32_t tokens; /* of a tail that a CTA has */
};

/* The rows of a tail that is full: those it held, then those that are added. */
struct tail_rows {
	qmk_tail tail;
	uint32_t width; /* of a row */
	qmk_dtype dtype;

	/* As it is stored: BF16, less the mean. */
	__device__ __forceinline__ __nv_bfloat16 added(const plane &p, uint32_t n, uint32_t i) const
	{
		const float value =
			qmk_load(p.source, ((uint64_t)tail.row + n) * p.stride + i, dtype);

		return __float2bfloat16_rn(p.mean ? value - p.mean[i] : value);
	}

	__device__ __forceinline__ float value(const plane &p, uint32_t token, uint32_t i) const
	{
		if (token >= tail.filled)
			return __bfloat162float(added(p, token - tail.filled, i));
		return __bfloat162float(
			((const __nv_bfloat16 *)tail.rows)[token * width + p.column + i]);
	}
};

/* The added rows that belong to this CTA's part of the tail. */
static __device__ void store_rows(const plane &p, const tail_rows &rows, uint32_t first,
				  uint32_t tokens)
{
	const qmk_tail &tail = rows.tail;

	for (uint32_t n = 0; n < tail.tokens; n++) {
		const uint32_t row = (tail.filled + n) % QMK_PAGE_TOKENS;

		if (row - first >= tokens) /* before it, too */
			continue;
		for (uint32_t i = threadIdx.x; i < p.dim; i += THREADS)
			((__nv_bfloat16 *)tail.rows)[row * rows.width + p.column + i] =
				rows.added(p, n, i);
	}
}

/* This CTA's part of a tail that is full into its page. */
static __device__ void pack_tail(const append_params &params, const tail_rows &rows, uint32_t first,
				 uint8_t *raw)
{
	const pack_params &pack = params.pack;
	const slice to = {qmk_page(pack.pool, pack.layout, rows.tail.slot, pack.layer), first,
			  params.tokens};

	if (pack.layout.format == QMK_FORMAT_PAPER_C4R4) {
		for (uint32_t t = threadIdx.x / 32; t < to.tokens; t += THREADS / 32) {
			pack_paper_plane(pack, rows, to.page, first + t, false);
			pack_paper_plane(pack, rows, to.page, first + t, true);
		}
		return;
	}
	if (to.tokens == SLICE) {
		pack_slice(pack, rows, to, raw);
		return;
	}
	for (uint32_t rope = 0; rope < 2; rope++) {
		load_plane(pack.planes[rope], rows, to, (float *)raw);
		pack_values(pack.planes[rope], to, (float *)raw);
		__syncthreads();
	}
}

static __global__ void __launch_bounds__(THREADS, 2)
	append_kernel(const __grid_constant__ append_params params)
{
	extern __shared__ __align__(16) uint8_t raw[];
	const pack_params &pack = params.pack;
	const uint32_t parts = QMK_PAGE_TOKENS / params.tokens;
	const uint32_t first = blockIdx.x % parts * params.tokens;

	grid_wait();
	const tail_rows rows = {params.tails[blockIdx.x / parts],
				pack.layout.content_dim + pack.layout.rope_dim, pack.dtype};

	if (rows.tail.filled >= QMK_PAGE_TOKENS || rows.tail.tokens > QMK_PAGE_TOKENS)
		return;
	if (rows.tail.filled + rows.tail.tokens >= QMK_PAGE_TOKENS)
		pack_tail(params, rows, first, raw);
	__syncthreads(); /* rows beyond the page begin the tail anew */
	store_rows(pack.planes[0], rows, first, params.tokens);
	store_rows(pack.planes[1], rows, first, params.tokens);
}

size_t qmk_cuda_append_workspace(const struct qmk_append_args *args)
{
	(void)args;
	return 0; /* shared memory is enough */
}

qmla_status_t qmk_cuda_append(const struct qmk_append_args *args)
{
	append_params params = {};
	qmk_pack_args pack = {};
	size_t bytes;
	qmla_status_t status;

	if (!args->tails)
		return QMLA_ERR_INVALID_ARGUMENT;
	pack.layout = args->layout;
	pack.constants = args->constants;
	pack.pool = args->pool;
	pack.layer = args->layer;
	pack.content = args->content;
	pack.rope = args->rope;
	pack.content_stride = args->content_stride;
	pack.rope_stride = args->rope_stride;
	pack.dtype = args->dtype;
	status = pack_check(&pack);
	if (status != QMLA_OK)
		return status;
	if (args->requests == 0)
		return QMLA_OK;
	params.pack = pack_params_of(&pack);
	params.tails = args->tails;
	params.tokens = wants_feedback(params.pack) ? SLICE : TOKENS;
	bytes = pack_shared_bytes(params.pack);
	status = pack_prepare(append_kernel, bytes);
	if (status != QMLA_OK)
		return status;
	return qmk_launch(append_kernel, dim3(args->requests * (QMK_PAGE_TOKENS / params.tokens)),
			  THREADS, bytes, true, (cudaStream_t)args->stream, params);
}
