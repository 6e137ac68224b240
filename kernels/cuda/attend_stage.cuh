/* SPDX-License-Identifier: Apache-2.0 */
/** @file Staging: queries to the images that the Hopper kernel's shared memory holds. */
#ifndef QMK_CUDA_ATTEND_STAGE_CUH
#define QMK_CUDA_ATTEND_STAGE_CUH

#include "kernels/cuda/attend_shape.cuh"

/*
 * s8 coefficients of a lane's bytes. With value = q_eff * unit they are, per byte of codes
 * (fields u_0 lowest … u_F-1), m_f of the byte with all fields above f masked off; the
 * masked bytes overlap, so each coefficient is what the ones above it leave:
 * q_f = sum over g >= f of m_g 2^(BITS (f - g)). The kernel's sum is then
 * sum_f 2^(BITS (F-1-f)) m_f . (byte masked to fields 0 … f), times unit / 2^(BITS (F-1)).
 * Returns the sum of what the fields really get.
 */
template <class K>
static __device__ __forceinline__ float stage_word(const float *value, float inverse,
						   uint32_t (&words)[K::PLANES][K::codes::FIELDS])
{
	using C = typename K::codes;
	float sum = 0.f;

#pragma unroll
	for (int b = 0; b < 4; b++) {
		float carried = 0.f; /* what the coefficients above leave in this field */

#pragma unroll
		for (int f = C::FIELDS - 1; f >= 0; f--) {
			float want = value[b * C::FIELDS + f] * inverse - carried;
			float high = rintf(fminf(fmaxf(want, -127.f), 127.f));
			float got = high;

			words[0][f] |= ((uint32_t)(int)high & 255) << (8 * b);
			if (K::PLANES == 2) {
				float low =
					rintf(fminf(fmaxf((want - high) * 254.f, -127.f), 127.f));

				words[K::PLANES - 1][f] |= ((uint32_t)(int)low & 255) << (8 * b);
				got += low * (1.f / 254.f);
			}
			carried += got;
			sum += carried;
			carried *= 1.f / (1 << C::BITS);
		}
	}
	return sum;
}

/* RoPE queries carry the softmax scale, so that their product is added as it stands. */
template <class K>
static __device__ __forceinline__ void stage_rope(const attend_params &p, uint64_t source,
						  bool inside, uint32_t r, uint8_t *image)
{
	const uint32_t lane = threadIdx.x % 32;
	float rope[2];

#pragma unroll
	for (int i = 0; i < 2; i++) {
		rope[i] = inside ? qmk_load(p.args.query_rope,
					    source * DR + rope_dim_at(2 * lane + i),
					    p.args.query_dtype) *
					   (p.args.scale * LOG2E)
				 : 0.f;
		rope[i] = fminf(fmaxf(rope[i], -65504.f), 65504.f);
	}
	*(uint32_t *)(image + K::QUERY_BYTES + image_at<K::ROWS>(r, 4 * lane)) =
		pack_half2(rope[0], rope[1]);
}

/**
 * One warp a query row. An entity's images: content of each head part, COLUMNS rows of
 * 512 bytes, then the RoPE queries, ROWS rows of 128 bytes.
 */
template <class K>
static __global__ void __launch_bounds__(128) stage_kernel(const __grid_constant__ attend_params p)
{
	using C = typename K::codes;
	constexpr int WORDS = C::ROW_BYTES / 128; /* of code bytes a lane: 4 lane + 128 w */
	constexpr int VALUES = 4 * C::FIELDS;     /* of a word, consecutive */
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t row = blockIdx.x * 4 + threadIdx.x / 32; /* over entities and their rows */
	const uint32_t e = row / K::ROWS, r = row % K::ROWS;
	uint8_t *image = p.plan.query_image + (uint64_t)e * K::ROWS * K::IMAGE;
	uint8_t *content = image + r / K::N * (K::COLUMNS * 512);
	float value[WORDS][VALUES];
	float largest = 0.f, unit, inverse, sum = 0.f;

	grid_wait(); /* an earlier call may still read the images */
	grid_launch_dependents();
	const qmk_sequence s = p.args.sequences[e / p.shape.groups];
	const uint32_t offset = e % p.shape.groups * K::ROWS + r;
	const bool inside = offset < s.queries * p.args.heads;
	const uint64_t source = (uint64_t)s.query_row * p.args.heads + offset;

#pragma unroll
	for (int w = 0; w < WORDS; w++)
#pragma unroll
		for (int i = 0; i < VALUES; i += 8) {
			if (inside)
				qmk_load8(p.args.query_content,
					  source * DC + (4 * lane + 128 * w) * C::FIELDS + i,
					  p.args.query_dtype, &value[w][i]);
			else
				for (int k = 0; k < 8; k++)
					value[w][i + k] = 0.f;
		}
	stage_rope<K>(p, source, inside, r, image);
#pragma unroll
	for (int i = 0; i < WORDS * VALUES; i++)
		largest = fmaxf(largest, fabsf(value[i / VALUES][i % VALUES]));
	for (int step = 16; step; step /= 2)
		largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
	unit = largest * 1.25f / 126.f; /* a coefficient is at most 1.25 times the largest query */
	unit = unit > 0.f ? unit : 1.f;
	inverse = 1.f / unit;
#pragma unroll
	for (int w = 0; w < WORDS; w++) {
		uint32_t words[K::PLANES][C::FIELDS] = {};

		sum += stage_word<K>(value[w], inverse, words);
#pragma unroll
		for (int plane = 0; plane < K::PLANES; plane++)
#pragma unroll
			for (int f = 0; f < C::FIELDS; f++) {
				/* In a step: the whole byte's image first, masked ones after it. */
				uint32_t byte = 4 * lane + 128 * w;
				uint32_t at = byte / 32 * (32 * C::FIELDS) +
					      (C::FIELDS - 1 - f) * 32 + byte % 32;

				*(uint32_t *)(content +
					      image_at<K::COLUMNS>(plane * K::N + r % K::N, at)) =
					words[plane][f];
			}
	}
	for (int step = 16; step; step /= 2)
		sum += __shfl_xor_sync(~0u, sum, step);
	if (lane == 0) {
		const float scale = p.args.scale * LOG2E * unit;

		p.plan.query_factors[row] = make_float2(-sum * C::OFFSET * scale,
							scale / (1 << (C::BITS * (C::FIELDS - 1))));
	}
}

#endif /* QMK_CUDA_ATTEND_STAGE_CUH */
