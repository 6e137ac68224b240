/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dequantises pages: one CTA a page, each thread one 32-bit word of codes at a time,
 * so that a warp reads 128 bytes and writes whole sectors.
 */
#include "kernels/cuda/unpack.cuh"

#include "kernels/cuda/device.cuh"

#define THREADS 256

/* Scale and offset of one row segment: value = scale * code + offset. */
struct affine {
	float scale, offset;
};

static __device__ __forceinline__ affine midrise(const __half *scales, uint32_t token, int bits)
{
	float scale = __half2float(scales[token]);

	return {scale, scale * (0.5f - (float)(1 << (bits - 1)))};
}

/* The 32-byte record of paper-c4r4: 8 bf16 scales, fp32 RoPE scale, 8 + 1 zero points. */
static __device__ __forceinline__ affine paper_content(const uint8_t *record, uint32_t groups,
						       uint32_t group)
{
	float scale = __bfloat162float(((const __nv_bfloat16 *)record)[group]);

	return {scale, -scale * (float)record[2 * groups + 4 + group]};
}

static __device__ __forceinline__ affine paper_rope(const uint8_t *record, uint32_t groups)
{
	float scale = *(const float *)(record + 2 * groups);

	return {scale, -scale * (float)record[3 * groups + 4]};
}

template <int BITS>
static __device__ __forceinline__ void expand(uint32_t word, affine a, const float *mean,
					      qmk_dtype dtype, void *out, uint64_t at)
{
	constexpr int N = 32 / BITS;
	float value[N];

#pragma unroll
	for (int i = 0; i < N; i++)
		value[i] =
			fmaf(a.scale, (float)(word >> (BITS * i) & ((1u << BITS) - 1)), a.offset);
	if (mean) {
#pragma unroll
		for (int i = 0; i < N; i++)
			value[i] += mean[i];
	}
	if (dtype == QMK_F32) {
#pragma unroll
		for (int i = 0; i < N; i += 4)
			*(float4 *)((float *)out + at + i) =
				make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
		return;
	}
#pragma unroll
	for (int i = 0; i < N; i += 8) {
		__nv_bfloat162 pair[4];

#pragma unroll
		for (int j = 0; j < 4; j++)
			pair[j] = __floats2bfloat162_rn(value[i + 2 * j], value[i + 2 * j + 1]);
		*(uint4 *)((__nv_bfloat16 *)out + at + i) = *(uint4 *)pair;
	}
}

template <int BITS>
static __global__ void __launch_bounds__(THREADS)
	unpack_kernel(qmk_layout layout, qmk_constants constants, qmk_unpack_args args)
{
	constexpr uint32_t N = 32 / BITS;
	const uint32_t page_index = blockIdx.x;
	const uint8_t *page = qmk_page(args.pool, layout, args.slots[page_index], args.layer);
	const bool paper = layout.format == QMK_FORMAT_PAPER_C4R4;
	const uint8_t *records = page + layout.content_scales_offset;
	const __half *content_scales = (const __half *)records;
	const __half *rope_scales = (const __half *)(page + layout.rope_scales_offset);
	const uint32_t groups = layout.content_dim / 64;
	const uint32_t record_bytes = layout.record_bytes;
	const uint32_t content_words = layout.content_row_bytes / 4;
	const uint32_t rope_words = layout.rope_row_bytes / 4;
	const uint64_t row0 = (uint64_t)page_index * QMK_PAGE_TOKENS;

	for (uint32_t i = threadIdx.x; i < QMK_PAGE_TOKENS * content_words; i += THREADS) {
		uint32_t token = i / content_words;
		uint32_t word = i % content_words;
		uint32_t chunk = qmk_chunk(word / 4, token, content_words / 4);
		uint32_t codes = *(const uint32_t *)(page + token * layout.content_row_bytes +
						     chunk * 16 + word % 4 * 4);
		affine a =
			paper ? paper_content(records + token * record_bytes, groups, word * N / 64)
			      : midrise(content_scales, token, BITS);

		expand<BITS>(
			codes, a, constants.content_mean ? constants.content_mean + word * N : NULL,
			args.dtype, args.content, (row0 + token) * args.content_stride + word * N);
	}
	for (uint32_t i = threadIdx.x; i < QMK_PAGE_TOKENS * rope_words; i += THREADS) {
		uint32_t token = i / rope_words;
		uint32_t word = i % rope_words;
		uint32_t chunk = qmk_chunk(word / 4, token, rope_words / 4);
		uint32_t codes = *(const uint32_t *)(page + layout.rope_codes_offset +
						     token * layout.rope_row_bytes + chunk * 16 +
						     word % 4 * 4);
		affine a = paper ? paper_rope(records + token * record_bytes, groups)
				 : midrise(rope_scales, token, 4);

		expand<4>(codes, a, constants.rope_mean ? constants.rope_mean + word * 8 : NULL,
			  args.dtype, args.rope, (row0 + token) * args.rope_stride + word * 8);
	}
}

static bool valid(const struct qmk_unpack_args *args)
{
	uint64_t align = args->dtype == QMK_F32 ? 4 : 8; /* 16-byte stores */

	return args->layout && args->slots && args->content && args->rope && args->pool.base &&
	       args->layer < args->layout->layers &&
	       args->content_stride >= args->layout->content_dim &&
	       args->rope_stride >= args->layout->rope_dim && args->content_stride % align == 0 &&
	       args->rope_stride % align == 0;
}

qmla_status_t qmk_cuda_unpack(const struct qmk_unpack_args *args)
{
	qmk_constants constants = {};
	cudaStream_t stream = (cudaStream_t)args->stream;

	if (!valid(args))
		return QMLA_ERR_INVALID_ARGUMENT;
	if (args->pages == 0)
		return QMLA_OK;
	if (args->constants && args->layout->format != QMK_FORMAT_PAPER_C4R4)
		constants = *args->constants;
	if (args->layout->content_bits == 2)
		unpack_kernel<2>
			<<<args->pages, THREADS, 0, stream>>>(*args->layout, constants, *args);
	else
		unpack_kernel<4>
			<<<args->pages, THREADS, 0, stream>>>(*args->layout, constants, *args);
	return qmk_cuda_status(cudaGetLastError());
}
