/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A tile of 64 tokens as fp16 rows in shared memory, [64][d_c + d_r + 8]: content,
 * then the key after rotation. Loaded from a packed page or from BF16 rows.
 */
#ifndef QMK_CUDA_TILE_CUH
#define QMK_CUDA_TILE_CUH

#include "kernels/cuda/device.cuh"

#define QMK_TILE_THREADS 128

/** cos and sin of position * frequency, the product and its reduction in double. */
static __device__ __forceinline__ float2 qmk_rotation(uint32_t position, float frequency,
						      float amplitude)
{
	double turns = (double)position * (double)frequency * 0.15915494309189533577;
	float s, c;

	sincospif(2.f * (float)(turns - rint(turns)), &s, &c);
	return make_float2(c * amplitude, s * amplitude);
}

/** Rotates the keys of a tile in place; pair j stands at (first, second). */
template <int DC, int DR>
static __device__ void qmk_tile_rotate(__half *tile, const qmk_rope &rope, uint32_t position)
{
	constexpr int STRIDE = DC + DR + 8;

	for (uint32_t i = threadIdx.x; i < 64 * (DR / 2); i += QMK_TILE_THREADS) {
		uint32_t token = i / (DR / 2);
		uint32_t pair = i % (DR / 2);
		bool half_split = rope.pairing == QMK_HALF_SPLIT;
		__half *first = tile + token * STRIDE + DC + (half_split ? pair : 2 * pair);
		__half *second = first + (half_split ? DR / 2 : 1);
		float2 turn = qmk_rotation(position + token, rope.inv_freq[pair], rope.amplitude);
		float x = __half2float(*first);
		float y = __half2float(*second);

		*first = __float2half_rn(x * turn.x - y * turn.y);
		*second = __float2half_rn(x * turn.y + y * turn.x);
	}
}

/** Codes of one word to fp16: value = scale * code + offset, plus the mean where given. */
template <int BITS>
static __device__ __forceinline__ void qmk_tile_expand(uint32_t word, float scale, float offset,
						       const float *mean, __half *out)
{
	constexpr int N = 32 / BITS;

#pragma unroll
	for (int i = 0; i < N; i += 2) {
		float a = fmaf(scale, (float)(word >> (BITS * i) & ((1u << BITS) - 1)), offset);
		float b =
			fmaf(scale, (float)(word >> (BITS * (i + 1)) & ((1u << BITS) - 1)), offset);

		if (mean) {
			a += mean[i];
			b += mean[i + 1];
		}
		*(__half2 *)(out + i) = __floats2half2_rn(a, b);
	}
}

/** Loads a page. Tokens outside [low, high) of the tile become zero: their bytes may be anything.
 */
template <int BITS, int DC, int DR>
static __device__ void qmk_tile_load_page(const qmk_layout &layout, const uint8_t *page,
					  const float *rope_mean, uint32_t low, uint32_t high,
					  __half *tile)
{
	constexpr int STRIDE = DC + DR + 8;
	constexpr uint32_t N = 32 / BITS;
	constexpr uint32_t WORDS = DC / N;
	constexpr uint32_t ROPE_WORDS = DR / 8;
	const bool paper = layout.format == QMK_FORMAT_PAPER_C4R4;
	constexpr uint32_t GROUPS = DC / 64;
	const uint8_t *meta = page + layout.content_scales_offset;

	for (uint32_t i = threadIdx.x; i < 64 * WORDS; i += QMK_TILE_THREADS) {
		uint32_t token = i / WORDS;
		uint32_t word = i % WORDS;
		uint32_t chunk = qmk_chunk(word / 4, token, WORDS / 4);
		uint32_t codes =
			*(const uint32_t *)(page + token * (WORDS * 4) + chunk * 16 + word % 4 * 4);
		float scale, offset;

		if (paper) {
			const uint8_t *record = meta + token * layout.record_bytes;
			uint32_t group = word * N / 64;

			scale = __bfloat162float(((const __nv_bfloat16 *)record)[group]);
			offset = -scale * (float)record[2 * GROUPS + 4 + group];
		} else {
			scale = __half2float(((const __half *)meta)[token]);
			offset = scale * (0.5f - (float)(1 << (BITS - 1)));
		}
		if (token < low || token >= high)
			scale = offset = 0.f;
		qmk_tile_expand<BITS>(codes, scale, offset, NULL, tile + token * STRIDE + word * N);
	}
	for (uint32_t i = threadIdx.x; i < 64 * ROPE_WORDS; i += QMK_TILE_THREADS) {
		uint32_t token = i / ROPE_WORDS;
		uint32_t word = i % ROPE_WORDS;
		uint32_t chunk = qmk_chunk(word / 4, token, ROPE_WORDS / 4);
		uint32_t codes =
			*(const uint32_t *)(page + layout.rope_codes_offset +
					    token * (ROPE_WORDS * 4) + chunk * 16 + word % 4 * 4);
		bool valid = token >= low && token < high;
		float scale, offset;

		if (paper) {
			const uint8_t *record = meta + token * layout.record_bytes;

			scale = *(const float *)(record + 2 * GROUPS);
			offset = -scale * (float)record[3 * GROUPS + 4];
		} else {
			scale = __half2float(
				((const __half *)(page + layout.rope_scales_offset))[token]);
			offset = -7.5f * scale;
		}
		qmk_tile_expand<4>(codes, valid ? scale : 0.f, valid ? offset : 0.f,
				   valid && rope_mean ? rope_mean + word * 8 : NULL,
				   tile + token * STRIDE + DC + word * 8);
	}
}

/** Loads @p count BF16 rows of [DC + DR]; the rest of the tile becomes zero. */
template <int DC, int DR>
static __device__ void qmk_tile_load_rows(const uint16_t *rows, uint32_t count,
					  const float *rope_mean, __half *tile)
{
	constexpr int STRIDE = DC + DR + 8;
	constexpr uint32_t EIGHTS = (DC + DR) / 8;

	/* Eight loads of a thread in flight: a tail is one tile, and nothing else hides them. */
#pragma unroll 8
	for (uint32_t i = threadIdx.x; i < 64 * EIGHTS; i += QMK_TILE_THREADS) {
		const uint32_t token = i / EIGHTS, at = i % EIGHTS * 8;
		uint4 raw = make_uint4(0, 0, 0, 0);
		uint32_t half[4];

		if (token < count)
			raw = *(const uint4 *)(rows + (uint64_t)token * (DC + DR) + at);
		const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};

#pragma unroll
		for (int w = 0; w < 4; w++) {
			float x = __uint_as_float(word[w] << 16);
			float y = __uint_as_float(word[w] & 0xffff0000u);

			if (at >= DC && rope_mean && token < count) {
				x += rope_mean[at - DC + 2 * w];
				y += rope_mean[at - DC + 2 * w + 1];
			}
			const __half2 pair = __floats2half2_rn(x, y);

			half[w] = *(const uint32_t *)&pair;
		}
		*(uint4 *)(tile + token * STRIDE + at) =
			make_uint4(half[0], half[1], half[2], half[3]);
	}
}

#endif /* QMK_CUDA_TILE_CUH */
