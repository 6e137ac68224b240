/* SPDX-License-Identifier: Apache-2.0 */
/** @file Quantise and pack a token's plane in the record of paper-c4r4. */
#ifndef QMK_CUDA_PACK_PAPER_CUH
#define QMK_CUDA_PACK_PAPER_CUH

#include "kernels/cuda/pack_plane.cuh"

/*
 * paper-c4r4: asymmetric, groups of 64, round to nearest even (docs/format.md). One warp a
 * token's plane, two values a lane.
 */
template <class Rows>
static __device__ void pack_paper_plane(const pack_params &params, const Rows &rows, uint8_t *page,
					uint32_t token, bool rope)
{
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t content_groups = params.layout.content_groups;
	const uint32_t groups = rope ? params.layout.rope_groups : content_groups;
	const plane &p = params.planes[rope];
	uint8_t *record =
		page + params.layout.content_scales_offset + token * params.layout.record_bytes;

	for (uint32_t group = 0; group < groups; group++) {
		const uint32_t width = min(64u, p.dim - group * 64);
		const uint32_t at = group * 64 + lane * 2;
		const bool inside = lane * 2 < width;
		float a = inside ? sane(rows.value(p, token, at)) : FLT_MAX;
		float b = inside ? sane(rows.value(p, token, at + 1)) : FLT_MAX;
		float low = fminf(a, b);
		float high = inside ? fmaxf(a, b) : -FLT_MAX;
		float scale, zero;
		uint32_t codes;

		for (int step = 16; step; step /= 2) {
			low = fminf(low, __shfl_xor_sync(~0u, low, step));
			high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
		}
		scale = fmaxf(high - low, 1e-8f) / 15.f;
		zero = rintf(fminf(fmaxf(-low / scale, 0.f), 15.f));
		codes = (uint32_t)rintf(fminf(fmaxf(a / scale + zero, 0.f), 15.f)) |
			(uint32_t)rintf(fminf(fmaxf(b / scale + zero, 0.f), 15.f)) << 4;
		if (inside) {
			uint32_t byte = group * 32 + lane;
			uint32_t chunk = qmk_chunk(byte / 16, token, p.row_bytes / 16);

			page[p.codes_offset + token * p.row_bytes + chunk * 16 + byte % 16] =
				(uint8_t)codes;
		}
		if (lane == 0 && !rope) {
			((__nv_bfloat16 *)record)[group] = __float2bfloat16_rn(scale);
			record[2 * content_groups + 4 * params.layout.rope_groups + group] =
				(uint8_t)zero;
		} else if (lane == 0) {
			((float *)(record + 2 * content_groups))[group] = scale;
			record[3 * content_groups + 4 * params.layout.rope_groups + group] =
				(uint8_t)zero;
		}
	}
	/* The record's padding is part of the page and its checksum. */
	if (!rope)
		return;
	for (uint32_t i = 3 * content_groups + 5 * params.layout.rope_groups + lane;
	     i < params.layout.record_bytes; i += 32)
		record[i] = 0;
}

#endif /* QMK_CUDA_PACK_PAPER_CUH */
