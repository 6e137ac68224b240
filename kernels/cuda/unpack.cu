/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dequantises pages: one CTA a page, each thread eight values at a time, so that a warp
 * writes 512 bytes of BF16 in a row; the means of its columns stay in registers.
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

/* Eight values from the lowest 8 * BITS bits of @codes. */
template <int BITS>
static __device__ __forceinline__ void expand(uint32_t codes, affine a, const float (&mean)[8],
					      qmk_dtype dtype, void *out, uint64_t at)
{
	float value[8];

#pragma unroll
	for (int i = 0; i < 8; i++)
		value[i] =
			fmaf(a.scale, (float)(codes >> (BITS * i) & ((1u << BITS) - 1)), a.offset) +
			mean[i];
	if (dtype == QMK_F32) {
#pragma unroll
		for (int i = 0; i < 8; i += 4)
			*(float4 *)((float *)out + at + i) =
				make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
		return;
	}
	__nv_bfloat162 pair[4];

#pragma unroll
	for (int j = 0; j < 4; j++)
		pair[j] = __floats2bfloat162_rn(value[2 * j], value[2 * j + 1]);
	*(uint4 *)((__nv_bfloat16 *)out + at) = *(uint4 *)pair;
}

/* One plane of a page as the kernel sees it. */
struct unpack_plane {
	const uint8_t *codes;
	uint32_t row_bytes;
	const float *mean;
	void *out;
	uint64_t row0, stride;
};

/* All threads: a unit is the bytes of eight values. @scale_of gives a token's affine map. */
template <int BITS, class ScaleOf>
static __device__ __forceinline__ void unpack_plane_of(const unpack_plane &p, qmk_dtype dtype,
						       ScaleOf scale_of)
{
	const uint32_t units = p.row_bytes / BITS;
	uint32_t held = UINT32_MAX;
	float mean[8] = {};

	for (uint32_t i = threadIdx.x; i < QMK_PAGE_TOKENS * units; i += THREADS) {
		const uint32_t token = i / units, unit = i % units, byte = unit * BITS;
		const uint8_t *at = p.codes + token * p.row_bytes +
				    qmk_chunk(byte / 16, token, p.row_bytes / 16) * 16 + byte % 16;

		/* Where units divide THREADS a thread keeps its columns. */
		if (p.mean && unit != held) {
			qmk_load8(p.mean, unit * 8, QMK_F32, mean);
			held = unit;
		}
		expand<BITS>(BITS == 4 ? *(const uint32_t *)at : *(const uint16_t *)at,
			     scale_of(token, unit), mean, dtype, p.out,
			     (p.row0 + token) * p.stride + unit * 8);
	}
}

struct unpack_params {
	qmk_layout layout;
	qmk_constants constants;
	qmk_unpack_args args;
};

template <int BITS>
static __global__ void __launch_bounds__(THREADS)
	unpack_kernel(const __grid_constant__ unpack_params params)
{
	const qmk_layout &layout = params.layout;
	const qmk_constants &constants = params.constants;
	const qmk_unpack_args &args = params.args;
	const uint8_t *page = qmk_page(args.pool, layout, args.slots[blockIdx.x], args.layer);
	const bool paper = layout.format == QMK_FORMAT_PAPER_C4R4;
	const uint8_t *records = page + layout.content_scales_offset;
	const __half *content_scales = (const __half *)records;
	const __half *rope_scales = (const __half *)(page + layout.rope_scales_offset);
	const uint32_t groups = layout.content_dim / 64;
	const uint64_t row0 = (uint64_t)blockIdx.x * QMK_PAGE_TOKENS;
	const unpack_plane content = {
		page, layout.content_row_bytes, constants.content_mean, args.content,
		row0, args.content_stride};
	const unpack_plane rope = {page + layout.rope_codes_offset,
				   layout.rope_row_bytes,
				   constants.rope_mean,
				   args.rope,
				   row0,
				   args.rope_stride};

	unpack_plane_of<BITS>(content, args.dtype, [=](uint32_t token, uint32_t unit) {
		return paper ? paper_content(records + token * layout.record_bytes, groups,
					     unit / 8)
			     : midrise(content_scales, token, BITS);
	});
	unpack_plane_of<4>(rope, args.dtype, [=](uint32_t token, uint32_t) {
		return paper ? paper_rope(records + token * layout.record_bytes, groups)
			     : midrise(rope_scales, token, 4);
	});
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
	unpack_params params = {};

	if (!valid(args))
		return QMLA_ERR_INVALID_ARGUMENT;
	if (args->pages == 0)
		return QMLA_OK;
	params.layout = *args->layout;
	params.args = *args;
	if (args->constants && args->layout->format != QMK_FORMAT_PAPER_C4R4)
		params.constants = *args->constants;
	return qmk_launch(args->layout->content_bits == 2 ? unpack_kernel<2> : unpack_kernel<4>,
			  dim3(args->pages), THREADS, 0, false, (cudaStream_t)args->stream, params);
}
