/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Absorbed MLA decode over packed pages on Hopper (docs/kernels.md explains the data
 * flow). The product is transposed: tokens and latent dimensions fill the 64 rows of a
 * wgmma, query rows are its N columns, so 16 heads waste nothing.
 *
 * One CTA a multiprocessor: a producer thread copies pages into a ring of stages; each
 * consumer warpgroup takes every LANES-th page by itself. Per page it computes
 *
 *   scores  S = K Q: codes are u8 operands as they stand (a byte with two or four codes,
 *           and the same byte with the upper codes masked off, against coefficients that
 *           make up for the overlap), queries s8 in one or two planes: exact integers;
 *           RoPE keys are expanded to fp16 and turned in registers;
 *   softmax in base 2 with a stale maximum (rescaled only when a score passes it by 8);
 *   output  O += V P: codes as fp16 subnormals u * 2^-24, again as they stand.
 *
 * Scales never touch an element: s_t multiplies a score and a probability, the offset of
 * the codes is subtracted from sums.
 */
#include <math_constants.h>

#include "kernels/cuda/attend_params.cuh"
#include "kernels/cuda/wgmma.cuh"

#define DC                 512
#define DR                 64
#define LOG2E              1.4426950408889634f
#define MASKED             -1e30f
#define STALE              8.f /* probabilities stay below 2^8 */
#define PRODUCER_REGISTERS 24

/* What the codes of a plane are: bits, codes a byte, images of the query. */
template <int BITS_> struct code_traits {
	static constexpr int BITS = BITS_;
	static constexpr int FIELDS = 8 / BITS;         /* codes of a byte, images of a query row */
	static constexpr int ROW_BYTES = DC * BITS / 8; /* of a token */
	static constexpr int STEPS = ROW_BYTES / 32;    /* k32 steps of the score */
	static constexpr int WARP_CHUNKS =
		ROW_BYTES / 16 / 4; /* 16-byte chunks whose output a warp holds */
	static constexpr float OFFSET = (1 << (BITS - 1)) - 0.5f; /* value = s (u - OFFSET) */
	static constexpr int KEYS = 64 * ROW_BYTES;               /* planes of a page */
	static constexpr int SCALES = KEYS + 64 * DR / 2;
	static constexpr int KEY_SCALES = SCALES + 128;
	static constexpr int PAGE_BYTES = KEY_SCALES + 128;
};

/* Shape of one kernel: N query rows a warpgroup, PLANES of 8 bits a query. */
template <int BITS_, int N_, int GROUPS_, int HEADSPLIT_, int PLANES_, int REGISTERS_>
struct kernel_shape {
	using codes = code_traits<BITS_>;
	static constexpr int N = N_;
	static constexpr int GROUPS = GROUPS_;       /* consumer warpgroups */
	static constexpr int HEADSPLIT = HEADSPLIT_; /* warpgroups that share a page, N rows each */
	static constexpr int LANES = GROUPS / HEADSPLIT;
	static constexpr int PLANES = PLANES_;
	static constexpr int REGISTERS = REGISTERS_;
	static constexpr int ROWS = N * HEADSPLIT;
	static constexpr int THREADS = GROUPS * 128 + 128;
	static constexpr int IMAGE = 512 * PLANES + 128; /* staged bytes of a query row */

	/* Shared memory, in bytes. */
	static constexpr int QUERY = 0;
	static constexpr int PROB = QUERY + ROWS * IMAGE;
	static constexpr int TURNS = PROB + GROUPS * 2 * N * 128;
	static constexpr int MEANS = TURNS + 8192;
	static constexpr int FACTORS = MEANS + 128;
	static constexpr int LIMITS = FACTORS + ROWS * 16;
	static constexpr int SCRATCH = LIMITS + ROWS * 4;
	static constexpr int MERGE = (SCRATCH + GROUPS * 4 * N * 8 + 127) / 128 * 128;
	static constexpr int MERGE_BYTES = LANES > 1 ? 16 * 128 * 16 : 0; /* 16 float4 a thread */
	static constexpr int STAGES_AT = MERGE + MERGE_BYTES;
	static constexpr int BARRIERS = 256;
	static constexpr int ROOM = (227 * 1024 - STAGES_AT - BARRIERS) / codes::PAGE_BYTES;
	/* A multiple of LANES: else a warpgroup could meet a barrier's phase twice. */
	static constexpr int STAGES = (ROOM < 12 ? ROOM : 12) / LANES * LANES;
	static constexpr int BARRIERS_AT = STAGES_AT + STAGES * codes::PAGE_BYTES;
	static constexpr int BYTES = BARRIERS_AT + BARRIERS;
};

static __device__ __forceinline__ uint32_t pack_half2(float a, float b)
{
	__half2 pair = __floats2half2_rn(a, b);

	return *(uint32_t *)&pair;
}

static __device__ __forceinline__ __half2 as_half2(uint32_t word)
{
	return *(__half2 *)&word;
}

static __device__ __forceinline__ uint32_t as_word(__half2 pair)
{
	return *(uint32_t *)&pair;
}

static __device__ __forceinline__ float exp2_fast(float x)
{
	float r;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}

static __device__ __forceinline__ uint32_t reverse3(uint32_t t)
{
	return (t & 1) << 2 | (t & 2) | (t & 4) >> 2;
}

/* ---- Staging: queries to the images that shared memory holds ---- */

/* Byte @k of row @n in block @block of an image of N rows: K-major, 128-byte swizzle. */
template <int N> static __device__ __forceinline__ uint32_t image_at(uint32_t n, uint32_t byte)
{
	uint32_t block = byte / 128, k = byte % 128;

	return block * N * 128 + n / 8 * 1024 + n % 8 * 128 + (k / 16 ^ n % 8) * 16 + k % 16;
}

/* dim of position @k of the RoPE image, as attend_keys lays out its registers. */
static __device__ __forceinline__ uint32_t rope_dim_at(uint32_t k)
{
	uint32_t step = k / 16, chunk = k / 8 % 2, q = k / 2 % 4, half = k % 2;

	return 32 * chunk + 8 * q + step + 4 * half;
}

/*
 * One warp a query row. With value = q_eff * unit, the images hold, per byte of codes
 * (fields u_0 lowest … u_F-1), s8 coefficients m_f of the byte with all fields above f
 * masked off; the masked bytes overlap, so each coefficient is what the ones above it
 * leave: q_f = sum over g >= f of m_g 2^(BITS (f - g)). The kernel's sum is then
 * sum_f 2^(BITS (F-1-f)) m_f . (byte masked to fields 0 … f), times unit / 2^(BITS (F-1)).
 */
template <class K>
static __global__ void __launch_bounds__(128) stage_kernel(const __grid_constant__ attend_params p)
{
	using C = typename K::codes;
	constexpr int BYTES = C::ROW_BYTES / 32; /* code bytes a lane */
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t row = blockIdx.x * 4 + threadIdx.x / 32; /* over entities and their rows */
	const uint32_t e = row / K::ROWS, r = row % K::ROWS;
	const uint32_t n = r % K::N;
	const qmk_sequence s = p.args.sequences[e / p.shape.groups];
	const uint32_t offset = e % p.shape.groups * K::ROWS + r;
	const bool inside = offset < s.queries * p.args.heads;

	grid_launch_dependents();
	grid_wait(); /* an earlier call may still read the images */
	const uint64_t source = (uint64_t)s.query_row * p.args.heads + offset;
	uint8_t *image = p.plan.query_image + ((uint64_t)e * K::ROWS + r / K::N * K::N) * K::IMAGE;
	float value[BYTES * C::FIELDS];
	float rope[2];
	float largest = 0.f, largest_rope, unit, inverse, sum = 0.f;

	/* Lane holds bytes 4 * lane + {0..3} + 128 * i: whole words of an image. */
#pragma unroll
	for (int i = 0; i < BYTES * C::FIELDS; i++) {
		uint32_t byte = 4 * lane + i / C::FIELDS % 4 + 128 * (i / C::FIELDS / 4);

		value[i] = inside ? qmk_load(p.args.query_content,
					     source * DC + byte * C::FIELDS + i % C::FIELDS,
					     p.args.query_dtype)
				  : 0.f;
		largest = fmaxf(largest, fabsf(value[i]));
	}
	for (int i = 0; i < 2; i++)
		rope[i] = inside ? qmk_load(p.args.query_rope,
					    source * DR + rope_dim_at(2 * lane + i),
					    p.args.query_dtype)
				 : 0.f;
	largest_rope = fmaxf(fabsf(rope[0]), fabsf(rope[1]));
	for (int step = 16; step; step /= 2) {
		largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
		largest_rope = fmaxf(largest_rope, __shfl_xor_sync(~0u, largest_rope, step));
	}
	unit = largest * 1.25f / 126.f; /* a coefficient is at most 1.25 times the largest query */
	unit = unit > 0.f ? unit : 1.f;
	inverse = 1.f / unit;

#pragma unroll
	for (int w = 0; w < BYTES / 4; w++) {
		uint32_t words[K::PLANES][C::FIELDS] = {};

#pragma unroll
		for (int b = 0; b < 4; b++) {
			float carried = 0.f; /* what the coefficients above leave in this field */

#pragma unroll
			for (int f = C::FIELDS - 1; f >= 0; f--) {
				float want = value[(w * 4 + b) * C::FIELDS + f] * inverse - carried;
				float high = rintf(fminf(fmaxf(want, -127.f), 127.f));
				float got = high;

				words[0][f] |= ((uint32_t)(int)high & 255) << (8 * b);
				if (K::PLANES == 2) {
					float low = rintf(
						fminf(fmaxf((want - high) * 254.f, -127.f), 127.f));

					words[K::PLANES - 1][f] |= ((uint32_t)(int)low & 255)
								   << (8 * b);
					got += low * (1.f / 254.f);
				}
				carried = (carried + got) * (1.f / (1 << C::BITS));
				sum += carried *
				       (1 << C::BITS); /* the query that field f really gets */
			}
		}
#pragma unroll
		for (int plane = 0; plane < K::PLANES; plane++)
#pragma unroll
			for (int f = 0; f < C::FIELDS; f++) {
				/* Image order in a step: all fields' byte first, masked ones after
				 * it. */
				uint32_t byte = 4 * lane + 128 * w;
				uint32_t at = plane * 512 + byte / 32 * (32 * C::FIELDS) +
					      (C::FIELDS - 1 - f) * 32 + byte % 32;

				*(uint32_t *)(image + image_at<K::N>(n, at)) = words[plane][f];
			}
	}
	for (int step = 16; step; step /= 2)
		sum += __shfl_xor_sync(~0u, sum, step);
	{
		float factor = largest_rope > 0.f ? 1024.f / largest_rope : 0.f;

		*(uint32_t *)(image + image_at<K::N>(n, 512 * K::PLANES + 4 * lane)) =
			pack_half2(rope[0] * factor, rope[1] * factor);
	}
	if (lane == 0)
		p.plan.query_factors[row] = make_float4(
			sum * C::OFFSET * (1 << (C::BITS * (C::FIELDS - 1))),
			p.args.scale * LOG2E * unit / (1 << (C::BITS * (C::FIELDS - 1))),
			p.args.scale * LOG2E * largest_rope / 1024.f, 0.f);
}

/* ---- The main kernel ---- */

/* What a consumer thread knows of its place. */
struct place {
	uint32_t base;      /* shared memory */
	uint32_t group;     /* warpgroup, 0 … GROUPS - 1 */
	uint32_t lane_set;  /* which pages: every LANES-th from here */
	uint32_t head_part; /* which N rows */
	uint32_t thread;    /* in the warpgroup */
	uint32_t warp, lane, g, q;
	uint32_t barrier; /* named barrier of the warpgroup */
};

/*
 * RoPE keys of two tokens (rows g and g + 8 of the warp's 16) as A fragments of four
 * k16 steps: a[step][row + 2 * chunk] = the codes (step, step + 4) of the 8-code word.
 */
template <bool HALF_SPLIT>
static __device__ __forceinline__ void
attend_keys(uint32_t page, uint32_t rope_codes, uint32_t rope_scales, uint32_t turns,
	    uint32_t means, const uint4 (&page_turn)[2], const place &at, uint32_t (&a)[4][4])
{
	const __half2 sixteenth = __float2half2_rn(0.0625f), minus = __float2half2_rn(-71.5f);
	const uint32_t token = at.warp * 16 + at.lane % 16;
	const uint32_t chunk = at.lane / 16 ^ (token >> 2 & 1);
	uint32_t word[4], scale[2];
	uint4 mean[2];

	load_matrices(word, page + rope_codes + token * 32 + chunk * 16);
	asm volatile("ld.shared.u16 %0, [%1];"
		     : "=r"(scale[0])
		     : "r"(page + rope_scales + 2 * (at.warp * 16 + at.g)));
	asm volatile("ld.shared.u16 %0, [%1];"
		     : "=r"(scale[1])
		     : "r"(page + rope_scales + 2 * (at.warp * 16 + at.g) + 16));
	for (int c = 0; c < 2; c++)
		asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
			     : "=r"(mean[c].x), "=r"(mean[c].y), "=r"(mean[c].z), "=r"(mean[c].w)
			     : "r"(means + at.q * 32 + c * 16));
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const __half2 s = as_half2(scale[r % 2] * 0x10001u);
		const uint4 m = mean[r / 2];
		const uint32_t shifted[4] = {word[r] << 4, word[r], word[r] >> 4, word[r] >> 8};
		const uint32_t mu[4] = {m.x, m.y, m.z, m.w};

#pragma unroll
		for (int e = 0; e < 4; e++) {
			/* 0x6400 is 1024: the field as 1024 + 16 u, then exactly u - 7.5. */
			uint32_t field = (shifted[e] & 0x00f000f0u) | 0x64006400u;

			a[e][r] = as_word(__hfma2(__hfma2(as_half2(field), sixteenth, minus), s,
						  as_half2(mu[e])));
		}
	}
	/* Couples (x, y): chunks 0 and 1 of a step, or steps 2v and 2v + 1 of a chunk. */
#pragma unroll
	for (int v = 0; v < 4; v++) {
		uint4 own;

		asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
			     : "=r"(own.x), "=r"(own.y), "=r"(own.z), "=r"(own.w)
			     : "r"(turns + (v * 128 + at.thread) * 16));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int u = v % 2 * 2 + i, row = v / 2;
			const uint4 far = page_turn[v % 2];
			const __half2 c0 = as_half2(i ? own.z : own.x),
				      s0 = as_half2(i ? own.w : own.y);
			const __half2 c1 = as_half2(i ? far.z : far.x),
				      s1 = as_half2(i ? far.w : far.y);
			const __half2 c = __hfma2(c0, c1, __hneg2(__hmul2(s0, s1)));
			const __half2 s = __hfma2(s0, c1, __hmul2(c0, s1));
			uint32_t &xa = HALF_SPLIT ? a[u][row] : a[u % 2 * 2][row + u / 2 * 2];
			uint32_t &ya =
				HALF_SPLIT ? a[u][row + 2] : a[u % 2 * 2 + 1][row + u / 2 * 2];
			const __half2 x = as_half2(xa), y = as_half2(ya);

			xa = as_word(__hfma2(x, c, __hneg2(__hmul2(y, s))));
			ya = as_word(__hfma2(x, s, __hmul2(y, c)));
		}
	}
}

/*
 * Integer scores of 64 tokens against N rows. acc[plane][f] is the sum against the byte
 * masked to fields 0 … f; joined here to float.
 */
template <class K>
static __device__ __forceinline__ void score_codes(uint32_t page, uint64_t query, const place &at,
						   float (&score)[K::N / 2])
{
	using C = typename K::codes;
	const uint32_t row = page + (at.warp * 16 + at.lane % 16) * C::ROW_BYTES;
	const uint32_t x = at.lane / 16 ^ reverse3(at.lane % 8);
	int acc[K::PLANES][C::FIELDS][K::N / 2];
	uint32_t raw[3][4], masked[2][C::FIELDS - 1][4];

	load_matrices(raw[0], row + x * 16);
	load_matrices(raw[1], row + (x ^ 2) * 16);
#pragma unroll
	for (int z = 0; z < C::STEPS; z++) {
		const int b = z % 3, c = z % 2;

#pragma unroll
		for (int f = 0; f < C::FIELDS - 1; f++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				masked[c][f][i] =
					raw[b][i] & ((1u << (C::BITS * (f + 1))) - 1) * 0x01010101u;
		wgmma_fence();
#pragma unroll
		for (int plane = 0; plane < K::PLANES; plane++) {
			/* Bytes from the start of the image to this step's images, as the
			 * descriptor counts. */
			const int byte = plane * 512 + z * 32 * C::FIELDS;

#pragma unroll
			for (int f = C::FIELDS - 1; f >= 0; f--) {
				const int k = byte + (C::FIELDS - 1 - f) * 32;
				const uint64_t b_at =
					query + (k / 128 * (K::N * 128) + k % 128 >> 4);

				if (f == C::FIELDS - 1)
					wgmma_u8(acc[plane][f], raw[b], b_at, z > 0);
				else
					wgmma_u8(acc[plane][f], masked[c][f], b_at, z > 0);
			}
		}
		wgmma_commit();
		if (z + 1 < C::STEPS) {
			if (z > 0)
				wgmma_wait<1>();
			if (z + 2 < C::STEPS)
				load_matrices(raw[(z + 2) % 3], row + (x ^ 2 * (z + 2)) * 16);
		}
	}
	wgmma_wait<0>();
#pragma unroll
	for (int j = 0; j < K::N / 2; j++) {
		int sum = 0;

#pragma unroll
		for (int f = 0; f < C::FIELDS; f++)
			sum += acc[0][f][j] << (C::BITS * (C::FIELDS - 1 - f));
		score[j] = (float)sum;
		if (K::PLANES == 2) {
			int low = 0;

#pragma unroll
			for (int f = 0; f < C::FIELDS; f++)
				low += acc[K::PLANES - 1][f][j] << (C::BITS * (C::FIELDS - 1 - f));
			score[j] = fmaf((float)low, 1.f / 254.f, score[j]);
		}
	}
}

/*
 * Output rows: from 16 tokens' words of codes, the A fragments of one chunk's m64 tiles.
 * A word holds two tokens' two bytes; tile t has field 2t % FIELDS of byte 2t / FIELDS in
 * its upper eight rows and the next field in its lower eight, masked, not shifted.
 */
template <class C>
static __device__ __forceinline__ void expand_chunk(uint32_t first, uint32_t second,
						    uint32_t (&a)[C::FIELDS][4])
{
	const uint32_t upper[2] = {first, __byte_perm(first, 0, 0x4341)};
	const uint32_t lower[2] = {second, __byte_perm(second, 0, 0x4341)};

#pragma unroll
	for (int t = 0; t < C::FIELDS; t++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int field = (2 * t + i) % C::FIELDS, byte = (2 * t + i) / C::FIELDS;
			const uint32_t mask = ((1u << (C::BITS * (field + 1))) - 1) * 0x00010001u;

			a[t][i] = upper[byte] & mask;
			a[t][i + 2] = lower[byte] & mask;
		}
}

template <class K>
static __device__ __forceinline__ void accumulate(uint32_t page, uint64_t prob, const place &at,
						  float (&out)[8][K::N / 2])
{
	using C = typename K::codes;
	const uint32_t row = page + (at.lane % 8 + at.lane / 8 % 2 * 8) * C::ROW_BYTES;
	const uint32_t chunk = at.warp * C::WARP_CHUNKS + at.lane / 16;
	const uint32_t x = reverse3(at.lane % 8);
	uint32_t a[2][C::FIELDS][4];
	constexpr int PAIRS = C::WARP_CHUNKS / 2;

#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int pair = 0; pair < PAIRS; pair++) {
			uint32_t word[4];

			load_matrices_transposed(word, row + k * 16 * C::ROW_BYTES +
							       ((chunk + 2 * pair) ^ x) * 16);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const int batch = (k * PAIRS + pair) * 2 + i;

				if (batch >= 2)
					wgmma_wait<1>();
				expand_chunk<C>(word[2 * i], word[2 * i + 1], a[i]);
				wgmma_fence();
#pragma unroll
				for (int t = 0; t < C::FIELDS; t++)
					wgmma_f16(out[(pair * 2 + i) * C::FIELDS + t], a[i][t],
						  prob + k * 2, 1);
				wgmma_commit();
			}
		}
}

/* Sums and maxima that a thread keeps for its N / 4 columns (query rows). */
template <int N> struct running {
	float total[N / 4];  /* of probabilities, this thread's tokens only */
	float offset[N / 4]; /* of probabilities times scale, likewise */
	float peak[N / 4];
};

/* Probabilities against the stale maximum, to shared memory as [row][64 tokens]. */
template <class K>
static __device__ __forceinline__ void
store_probabilities(const float (&score)[K::N / 2], const float (&scale)[2],
		    const running<K::N> &run, uint32_t prob, const place &at,
		    float (&total)[K::N / 4], float (&offset)[K::N / 4])
{
	uint32_t packed[K::N / 4];

#pragma unroll
	for (int j = 0; j < K::N / 8; j++) {
		float a = exp2_fast(score[4 * j] - run.peak[2 * j]);
		float b = exp2_fast(score[4 * j + 1] - run.peak[2 * j + 1]);
		float c = exp2_fast(score[4 * j + 2] - run.peak[2 * j]);
		float d = exp2_fast(score[4 * j + 3] - run.peak[2 * j + 1]);

		total[2 * j] = a + c;
		total[2 * j + 1] = b + d;
		a *= scale[0];
		b *= scale[0];
		c *= scale[1];
		d *= scale[1];
		offset[2 * j] = a + c;
		offset[2 * j + 1] = b + d;
		packed[2 * j] = pack_half2(a, b);
		packed[2 * j + 1] = pack_half2(c, d);
	}
#pragma unroll
	for (int j = 0; j < K::N / 16; j++) {
		const uint32_t row = at.lane / 16 * 8 + at.lane % 8 + 16 * j;
		const uint32_t chunk = 2 * at.warp + at.lane / 8 % 2;

		store_matrices_transposed(
			prob + row / 8 * 1024 + row % 8 * 128 + (chunk ^ row % 8) * 16,
			packed[4 * j], packed[4 * j + 1], packed[4 * j + 2], packed[4 * j + 3]);
	}
	async_proxy_fence();
}

/* Raises the maxima to what this page needs and rescales what was summed before. */
template <class K>
static __device__ void raise_peaks(const float (&score)[K::N / 2], uint8_t *shared, const place &at,
				   running<K::N> &run, float (&out)[8][K::N / 2])
{
	float *scratch = (float *)(shared + K::SCRATCH) + at.group * 4 * K::N * 2;

#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		float x = fmaxf(score[4 * (j / 2) + j % 2], score[4 * (j / 2) + 2 + j % 2]);

		for (int step = 4; step < 32; step *= 2)
			x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
		if (at.g == 0)
			scratch[(at.warp * K::N + j / 2 * 8 + 2 * at.q + j % 2) * 2] = x;
	}
	group_sync(at.barrier, 128);
#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		const int column = j / 2 * 8 + 2 * at.q + j % 2;
		float peak = run.peak[j], shrink;

#pragma unroll
		for (int w = 0; w < 4; w++)
			peak = fmaxf(peak, scratch[(w * K::N + column) * 2]);
		shrink = exp2_fast(run.peak[j] - peak);
		run.total[j] *= shrink;
		run.offset[j] *= shrink;
		run.peak[j] = peak;
#pragma unroll
		for (int t = 0; t < 8; t++) {
			out[t][4 * (j / 2) + j % 2] *= shrink;
			out[t][4 * (j / 2) + 2 + j % 2] *= shrink;
		}
	}
}

/* Scores of tokens that a row may not see, or that are not packed tokens, become MASKED. */
template <class K>
static __device__ __forceinline__ void mask_page(uint32_t first_token, uint32_t sink,
						 const uint32_t *limits, const place &at,
						 float (&score)[K::N / 2], float (&scale)[2])
{
	const uint32_t token[2] = {first_token + at.warp * 16 + at.g,
				   first_token + at.warp * 16 + at.g + 8};
	bool used[2] = {false, false};

#pragma unroll
	for (int j = 0; j < K::N / 2; j++) {
		const int r = j / 2 % 2;
		const uint32_t column = j / 4 * 8 + 2 * at.q + j % 2;
		const bool seen = token[r] >= sink && token[r] < limits[column];

		if (!seen)
			score[j] = MASKED;
		used[r] |= seen;
	}
	/* A scale past the end may be any bytes. */
	for (int r = 0; r < 2; r++)
		if (!used[r])
			scale[r] = 0.f;
}

template <class K>
static __device__ __forceinline__ void
write_partial(const attend_params &p, uint32_t split, uint8_t *shared, const place &at,
	      const running<K::N> &run, const float (&out)[8][K::N / 2])
{
	using C = typename K::codes;
	float *scratch = (float *)(shared + K::SCRATCH) + at.group * 4 * K::N * 2;
	const uint64_t row0 = (uint64_t)split * K::ROWS + at.head_part * K::N;

#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		float a = run.total[j], b = run.offset[j];

		for (int step = 4; step < 32; step *= 2) {
			a += __shfl_xor_sync(~0u, a, step);
			b += __shfl_xor_sync(~0u, b, step);
		}
		if (at.g == 0)
			*(float2 *)&scratch[(at.warp * K::N + j / 2 * 8 + 2 * at.q + j % 2) * 2] =
				make_float2(a, b);
	}
	group_sync(at.barrier, 128);
#pragma unroll
	for (int j = 0; j < K::N / 4; j++) {
		const int column = j / 2 * 8 + 2 * at.q + j % 2;
		float total = 0.f, offset = 0.f, factor;

		for (int w = 0; w < 4; w++) {
			float2 part = *(float2 *)&scratch[(w * K::N + column) * 2];

			total += part.x;
			offset += part.y;
		}
		factor = total > 0.f ? 1.f / total : 0.f;
		offset *= C::OFFSET * factor;
		factor *= 16777216.f; /* the codes went in as u * 2^-24 */
#pragma unroll
		for (int c = 0; c < C::WARP_CHUNKS; c++) {
			/* Lane g has bytes 2g and 2g + 1 of chunk c: 2 * FIELDS dimensions in a
			 * row. */
			float *to = p.plan.partial + (row0 + column) * DC +
				    (at.warp * C::WARP_CHUNKS + c) * 16 * C::FIELDS +
				    at.g * 2 * C::FIELDS;

#pragma unroll
			for (int byte = 0; byte < 2; byte++) {
				float below = 0.f, value[C::FIELDS];

#pragma unroll
				for (int f = 0; f < C::FIELDS; f++) {
					const int field = byte * C::FIELDS + f;
					float sum = out[c * C::FIELDS + field / 2]
						       [4 * (j / 2) + field % 2 * 2 + j % 2];

					value[f] = (sum - below) * factor / (1 << (C::BITS * f)) -
						   offset;
					below = sum;
				}
				if (C::FIELDS == 2)
					*(float2 *)(to + byte * 2) =
						make_float2(value[0], value[1]);
				else
					*(float4 *)(to + byte * 4) = make_float4(
						value[0], value[1], value[C::FIELDS - 2],
						value[C::FIELDS - 1]);
			}
		}
		if (at.warp == 0 && at.g == 0)
			p.plan.partial_lse[row0 + column] =
				total > 0.f ? run.peak[j] + log2f(total) : -CUDART_INF_F;
	}
	group_sync(at.barrier, 128); /* scratch is free again */
}

/*
 * Joins what the warpgroups of one item have summed into the first one's registers.
 * Thread i of every group holds the same elements, so registers are exchanged as they are,
 * 16 float4 at a time.
 */
template <class K>
static __device__ __forceinline__ void join_groups(uint32_t base, const place &at,
						   running<K::N> &run, float (&out)[8][K::N / 2])
{
	constexpr int ROUNDS = K::N / 16;
	const uint32_t slot = base + K::MERGE + at.thread * 16;

#pragma unroll 1
	for (uint32_t from = 1; from < K::LANES; from++) {
		const bool sender = at.lane_set == from;
		const int barrier = 8 + (int)from;
		float mine[K::N / 4], theirs[K::N / 4];

		if (!sender && at.lane_set != 0)
			continue;
		group_sync(barrier, 256); /* the group before is done with the buffer */
		/* First the sums of each column, in the buffer's first N / 4 float4. */
#pragma unroll
		for (int j = 0; j < K::N / 4; j++) {
			const uint32_t to = slot + j * 2048;
			float total, offset, peak, joined;

			if (sender) {
				asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%3};" ::"r"(to),
					     "f"(run.total[j]), "f"(run.offset[j]), "f"(run.peak[j])
					     : "memory");
				continue;
			}
			if (j == 0)
				group_sync(barrier, 256);
			asm volatile("{\n.reg .f32 t;\nld.shared.v4.f32 {%0,%1,%2,t}, [%3];\n}\n"
				     : "=f"(total), "=f"(offset), "=f"(peak)
				     : "r"(to)
				     : "memory");
			joined = fmaxf(run.peak[j], peak);
			mine[j] = exp2_fast(run.peak[j] - joined);
			theirs[j] = exp2_fast(peak - joined);
			run.peak[j] = joined;
			run.total[j] = run.total[j] * mine[j] + total * theirs[j];
			run.offset[j] = run.offset[j] * mine[j] + offset * theirs[j];
		}
		if (sender)
			group_sync(barrier, 256);
		group_sync(barrier, 256);
#pragma unroll
		for (int round = 0; round < ROUNDS; round++) {
			if (sender) {
#pragma unroll
				for (int i = 0; i < 16; i++) {
					const int element = (round * 16 + i) * 4,
						  t = element / (K::N / 2),
						  j = element % (K::N / 2);

					asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(
							     slot + i * 2048),
						     "f"(out[t][j]), "f"(out[t][j + 1]),
						     "f"(out[t][j + 2]), "f"(out[t][j + 3])
						     : "memory");
				}
			}
			group_sync(barrier, 256);
			if (!sender) {
#pragma unroll
				for (int i = 0; i < 16; i++) {
					const int element = (round * 16 + i) * 4,
						  t = element / (K::N / 2),
						  j = element % (K::N / 2);
					float other[4];

					asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
						     : "=f"(other[0]), "=f"(other[1]),
						       "=f"(other[2]), "=f"(other[3])
						     : "r"(slot + i * 2048)
						     : "memory");
#pragma unroll
					for (int x = 0; x < 4; x++)
						out[t][j + x] =
							out[t][j + x] * mine[j / 4 * 2 + x % 2] +
							other[x] * theirs[j / 4 * 2 + x % 2];
				}
			}
			group_sync(barrier, 256);
		}
	}
}

template <class K> static __device__ void produce(const attend_params &p, uint32_t base)
{
	const uint64_t policy = evict_first_policy();
	const uint32_t bars = base + K::BARRIERS_AT;
	const uint8_t *layer = (const uint8_t *)p.args.pool.base + p.layout.header_bytes +
			       (uint64_t)p.args.layer * p.layout.page_bytes;
	uint32_t stage = 0, parity = 1;

	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];
		const qmk_sequence &s = p.args.sequences[item.entity / p.shape.groups];
		const uint32_t *table = p.args.block_table + s.table_start;
		uint32_t next = table[item.tile_begin];

		for (uint32_t tile = item.tile_begin; tile < item.tile_end; tile++) {
			const uint8_t *page = layer + (uint64_t)next * p.args.pool.stride;

			if (tile + 1 < item.tile_end)
				next = table[tile + 1];
			barrier_wait(bars + 16 * stage + 8, parity);
			barrier_expect(bars + 16 * stage, K::codes::PAGE_BYTES);
			if (p.shape.groups == 1)
				bulk_copy_once(base + K::STAGES_AT + stage * K::codes::PAGE_BYTES,
					       page, K::codes::PAGE_BYTES, bars + 16 * stage,
					       policy);
			else
				bulk_copy(base + K::STAGES_AT + stage * K::codes::PAGE_BYTES, page,
					  K::codes::PAGE_BYTES, bars + 16 * stage);
			if (++stage == K::STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
	}
}

/* All consumers: the item's queries, factors and limits to shared memory. */
template <class K>
static __device__ void load_item(const attend_params &p, const qmk_item &item, uint8_t *shared,
				 uint32_t base, uint32_t query_barrier, uint32_t parity)
{
	const uint32_t thread = threadIdx.x - 128;
	const qmk_sequence &s = p.args.sequences[item.entity / p.shape.groups];
	const uint32_t offset = item.entity % p.shape.groups * K::ROWS;

	group_sync(15, K::GROUPS * 128); /* the item before is done with */
	grid_wait(); /* the staged queries; returns at once after the first time */
	if (thread == 0) {
		barrier_expect(query_barrier, K::ROWS * K::IMAGE);
		bulk_copy(base + K::QUERY,
			  p.plan.query_image + (uint64_t)item.entity * K::ROWS * K::IMAGE,
			  K::ROWS * K::IMAGE, query_barrier);
	}
	if (thread < K::ROWS) {
		const uint32_t visible = attend_visible(
			s, min(offset + thread, s.queries * p.args.heads - 1), p.args.heads);

		((float4 *)(shared + K::FACTORS))[thread] =
			p.plan.query_factors[(uint64_t)item.entity * K::ROWS + thread];
		((uint32_t *)(shared + K::LIMITS))[thread] = min(visible, s.packed_end);
	}
	barrier_wait(query_barrier, parity);
	group_sync(15, K::GROUPS * 128);
}

template <class K>
static __device__ void consume(const attend_params &p, uint8_t *shared, uint32_t base,
			       const place &at)
{
	const bool half_split = p.rope.pairing == QMK_HALF_SPLIT;
	const uint32_t bars = base + K::BARRIERS_AT;
	const uint32_t query_barrier = bars + 16 * K::STAGES;
	const uint32_t image = base + K::QUERY + at.head_part * K::N * K::IMAGE;
	const uint64_t query = wgmma_descriptor(image);
	const uint64_t rope_query = wgmma_descriptor(image + K::PLANES * 4 * K::N * 128);
	const uint32_t prob0 = base + K::PROB + at.group * 2 * K::N * 128;
	const float4 *factors = (const float4 *)(shared + K::FACTORS) + at.head_part * K::N;
	const uint32_t *limits = (const uint32_t *)(shared + K::LIMITS) + at.head_part * K::N;
	uint32_t pages_before = 0, query_parity = 0;

	for (uint32_t i = p.plan.part_begin[blockIdx.x]; i < p.plan.part_begin[blockIdx.x + 1];
	     i++) {
		const qmk_item item = p.plan.items[i];
		const qmk_sequence &s = p.args.sequences[item.entity / p.shape.groups];
		const uint32_t sink = s.sink;
		const uint32_t pages = item.tile_end - item.tile_begin;
		uint32_t stage = (pages_before + at.lane_set) % K::STAGES;
		uint32_t parity = (pages_before + at.lane_set) / K::STAGES % 2;
		uint32_t buffer = 0;
		const uint4 *turns = p.plan.page_turns + item.tile_begin * 8 + at.q * 2;
		uint4 page_turn[2];
		uint32_t first_limit;
		float out[8][K::N / 2];
		running<K::N> run;

		if (at.lane_set < pages) {
			page_turn[0] = __ldg(turns + at.lane_set * 8);
			page_turn[1] = __ldg(turns + at.lane_set * 8 + 1);
		}
		load_item<K>(p, item, shared, base, query_barrier, query_parity);
		query_parity ^= 1;
		first_limit = limits[0]; /* rows are in order of query: the least */
#pragma unroll
		for (int t = 0; t < 8; t++)
#pragma unroll
			for (int j = 0; j < K::N / 2; j++)
				out[t][j] = 0.f;
#pragma unroll
		for (int j = 0; j < K::N / 4; j++) {
			run.total[j] = run.offset[j] = 0.f;
			run.peak[j] = MASKED;
		}
#pragma unroll 1
		for (uint32_t n = at.lane_set; n < pages; n += K::LANES) {
			const uint32_t page = base + K::STAGES_AT + stage * K::codes::PAGE_BYTES;
			const uint32_t position = (item.tile_begin + n) * QMK_TILE;
			const uint32_t prob = prob0 + buffer * K::N * 128;
			const uint32_t own = at.warp * 16 + at.g;
			float score[K::N / 2], rope[K::N / 2], total[K::N / 4], offset[K::N / 4],
				scale[2];
			float over = MASKED;
			uint32_t bits[2];

			barrier_wait(bars + 16 * stage, parity);
			{
				uint32_t keys[4][4];

				if (half_split)
					attend_keys<true>(page, K::codes::KEYS,
							  K::codes::KEY_SCALES, base + K::TURNS,
							  base + K::MEANS, page_turn, at, keys);
				else
					attend_keys<false>(page, K::codes::KEYS,
							   K::codes::KEY_SCALES, base + K::TURNS,
							   base + K::MEANS, page_turn, at, keys);
				/* The next page's, so that they are here when it is. */
				if (n + K::LANES < pages) {
					page_turn[0] = __ldg(turns + (n + K::LANES) * 8);
					page_turn[1] = __ldg(turns + (n + K::LANES) * 8 + 1);
				}
				wgmma_fence();
#pragma unroll
				for (int k = 0; k < 4; k++)
					wgmma_f16(rope, keys[k], rope_query + k * 2, k > 0);
				wgmma_commit();
				wgmma_wait<0>();
			}
			score_codes<K>(page, query, at, score);
			for (int r = 0; r < 2; r++) {
				asm volatile("ld.shared.u16 %0, [%1];"
					     : "=r"(bits[r])
					     : "r"(page + K::codes::SCALES + 2 * (own + 8 * r)));
				scale[r] = __half2float(__ushort_as_half((unsigned short)bits[r]));
			}
#pragma unroll
			for (int j = 0; j < K::N / 2; j++) {
				const float4 f = factors[j / 4 * 8 + 2 * at.q + j % 2];

				score[j] = fmaf((score[j] - f.x) * f.y, scale[j / 2 % 2],
						rope[j] * f.z);
			}
			if (position + QMK_TILE > first_limit || position < sink)
				mask_page<K>(position, sink, limits, at, score, scale);
#pragma unroll
			for (int j = 0; j < K::N / 2; j++)
				over = fmaxf(over, score[j] - run.peak[j / 4 * 2 + j % 2]);
			store_probabilities<K>(score, scale, run, prob, at, total, offset);
			if (group_any(at.barrier, 128, over > STALE)) {
				raise_peaks<K>(score, shared, at, run, out);
				store_probabilities<K>(score, scale, run, prob, at, total, offset);
				group_sync(at.barrier, 128);
			}
#pragma unroll
			for (int j = 0; j < K::N / 4; j++) {
				run.total[j] += total[j];
				run.offset[j] += offset[j];
			}
			accumulate<K>(page, wgmma_descriptor(prob), at, out);
			__syncwarp();
			if (at.lane == 0)
				barrier_arrive(bars + 16 * stage + 8);
			wgmma_wait<0>();
			buffer ^= 1;
			stage += K::LANES;
			if (stage >= K::STAGES) {
				stage -= K::STAGES;
				parity ^= 1;
			}
		}
		pages_before += pages;
		if (K::LANES > 1)
			join_groups<K>(base, at, run, out);
		if (at.lane_set == 0)
			write_partial<K>(p, item.split, shared, at, run, out);
	}
}

template <class K>
static __global__ void __launch_bounds__(K::THREADS, 1)
	hopper_kernel(const __grid_constant__ attend_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL /* other targets get an empty body and never launch it */
	extern __shared__ __align__(1024) uint8_t shared[];
	const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
	const uint32_t bars = base + K::BARRIERS_AT;
	const uint32_t group = __shfl_sync(~0u, threadIdx.x / 128, 0);

	if (threadIdx.x == 0) {
		for (int i = 0; i < K::STAGES; i++) {
			barrier_init(bars + 16 * i, 1);
			barrier_init(bars + 16 * i + 8, 4 * K::HEADSPLIT);
		}
		barrier_init(bars + 16 * K::STAGES, 1);
		async_proxy_fence();
	}
	for (uint32_t i = threadIdx.x; i < 512; i += K::THREADS)
		((uint4 *)(shared + K::TURNS))[i] = p.plan.token_turns[i];
	/* means[q][chunk][step]: the two halves are the codes (step, step + 4). */
	if (threadIdx.x < 32) {
		const uint32_t q = threadIdx.x / 8, chunk = threadIdx.x / 4 % 2,
			       step = threadIdx.x % 4;
		const uint32_t dim = 32 * chunk + 8 * q + step;

		((uint32_t *)(shared + K::MEANS))[threadIdx.x] =
			p.rope_mean ? pack_half2(p.rope_mean[dim], p.rope_mean[dim + 4]) : 0;
	}
	__syncthreads();
	grid_launch_dependents();
	if (group == 0) {
		registers_lower<PRODUCER_REGISTERS>();
		if (threadIdx.x == 0) {
			produce<K>(p, base);
			grid_wait(); /* so that the end of this grid means the end of those before
				      */
		}
		return;
	}
	registers_raise<K::REGISTERS>();
	{
		place at;

		at.base = base;
		at.group = group - 1;
		at.lane_set = at.group / K::HEADSPLIT;
		at.head_part = at.group % K::HEADSPLIT;
		at.thread = threadIdx.x % 128;
		at.warp = at.thread / 32;
		at.lane = at.thread % 32;
		at.g = at.lane / 4;
		at.q = at.lane % 4;
		at.barrier = 1 + at.group;
		consume<K>(p, shared, base, at);
	}
#endif
}

/* ---- Host ---- */

template <int BITS, int PLANES> using shape16 = kernel_shape<BITS, 16, 3, 1, PLANES, 160>;
template <int BITS, int PLANES> using shape32 = kernel_shape<BITS, 32, 2, 1, PLANES, 240>;
template <int BITS, int PLANES> using shape64 = kernel_shape<BITS, 32, 2, 2, PLANES, 240>;

static bool narrow_queries(const struct qmk_attend_args *args)
{
	return args->query_bits == 8;
}

bool attend_hopper_fits(const struct qmk_attend_args *args)
{
	int device, major, minor;

	if (!args->layout || args->layout->content_dim != DC || args->layout->rope_dim != DR ||
	    args->layout->format == QMK_FORMAT_PAPER_C4R4 || args->query_bits == 16)
		return false;
	return cudaGetDevice(&device) == cudaSuccess &&
	       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
		       cudaSuccess &&
	       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
		       cudaSuccess &&
	       major == 9 && minor == 0;
}

uint32_t attend_hopper_rows(uint32_t rows)
{
	return rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

uint32_t attend_hopper_lanes(uint32_t group_rows)
{
	(void)group_rows;
	return 1;
}

uint32_t attend_hopper_image_bytes(const struct qmk_attend_args *args)
{
	return narrow_queries(args) ? shape16<4, 1>::IMAGE : shape16<4, 2>::IMAGE;
}

template <class K> static qmla_status_t launch(const attend_params &p, cudaStream_t stream)
{
	qmla_status_t status = qmk_cuda_status(cudaFuncSetAttribute(
		hopper_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, K::BYTES));

	if (status != QMLA_OK)
		return status;
	status = qmk_launch(stage_kernel<K>, dim3(p.shape.entities * K::ROWS / 4), 128, 0, true,
			    stream, p);
	if (status != QMLA_OK)
		return status;
	return qmk_launch(hopper_kernel<K>, dim3(p.shape.parts), K::THREADS, K::BYTES, true, stream,
			  p);
}

template <int BITS, int PLANES>
static qmla_status_t launch_rows(const attend_params &p, cudaStream_t stream)
{
	if (p.shape.rows == 16)
		return launch<shape16<BITS, PLANES>>(p, stream);
	if (p.shape.rows == 32)
		return launch<shape32<BITS, PLANES>>(p, stream);
	return launch<shape64<BITS, PLANES>>(p, stream);
}

qmla_status_t attend_hopper_launch(const attend_params &p, cudaStream_t stream)
{
	const bool narrow = narrow_queries(&p.args);

	if (p.layout.content_bits == 2)
		return narrow ? launch_rows<2, 1>(p, stream) : launch_rows<2, 2>(p, stream);
	return narrow ? launch_rows<4, 1>(p, stream) : launch_rows<4, 2>(p, stream);
}
