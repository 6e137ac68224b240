/* SPDX-License-Identifier: Apache-2.0 */
/** @file Scores and probabilities of one page, by one warpgroup. */
#ifndef QMK_CUDA_ATTEND_SCORE_CUH
#define QMK_CUDA_ATTEND_SCORE_CUH

#include "kernels/cuda/attend_shape.cuh"

/** What a consumer thread knows of its place. */
struct place {
	uint32_t base;      /* shared memory */
	uint32_t group;     /* warpgroup, 0 … GROUPS - 1 */
	uint32_t lane_set;  /* which pages: every LANES-th from here */
	uint32_t head_part; /* which N rows */
	uint32_t thread;    /* in the warpgroup */
	uint32_t warp, lane, g, q;
	uint32_t barrier; /* named barrier of the warpgroup */
};

/** Sums and maxima that a thread keeps for its N / 4 columns (query rows). */
template <int N> struct running {
	float total[N / 4];  /* of probabilities, this thread's tokens only */
	float offset[N / 4]; /* of probabilities times scale, likewise */
	float peak[N / 4];   /* what scores are relative to; 0 while unset */
	uint32_t unset;      /* bit j: column j has seen no token yet */
};

static __device__ __forceinline__ uint4 load_shared4(uint32_t address)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(address));
	return v;
}

static __device__ __forceinline__ void store_shared4(uint32_t address, const uint32_t (&v)[4])
{
	asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
		     "r"(v[2]), "r"(v[3])
		     : "memory");
}

static __device__ __forceinline__ uint32_t load_shared_half(uint32_t address)
{
	uint32_t bits;

	asm volatile("ld.shared.u16 %0, [%1];" : "=r"(bits) : "r"(address));
	return bits;
}

/** The codes' bits 4 to 7 of both halves under fp16's 1024: 1024 + 16 u. */
static __device__ __forceinline__ uint32_t code_under_1024(uint32_t word, uint32_t magic)
{
	uint32_t r;

	/* One instruction takes one immediate, so the other constant is in a register. */
	asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(word), "n"(0x00f000f0), "r"(magic));
	return r;
}

/**
 * RoPE keys of two tokens (rows g and g + 8 of the warp's 16) as A fragments of four
 * k16 steps: a[step][row + 2 * chunk] = the codes (step, step + 4) of the 8-code word.
 * Turned by the token's place in its page only: the page's own angle is in the query.
 * Work is in PARTS, to be put between the steps of the content product.
 */
template <class K> struct rope_keys {
	static constexpr int PARTS = 6;
	uint32_t a[4][4];
	uint32_t word[4];
	uint32_t scale[2];
	uint32_t magic;

	__device__ __forceinline__ void load(uint32_t page, const place &at)
	{
		using C = typename K::codes;
		const uint32_t token = at.warp * 16 + at.lane % 16;
		const uint32_t chunk = at.lane / 16 ^ (token >> 2 & 1);
		const uint32_t scales = page + C::KEY_SCALES + 2 * (at.warp * 16 + at.g);

		load_matrices(word, page + C::KEYS + token * 32 + chunk * 16);
		scale[0] = load_shared_half(scales);
		scale[1] = load_shared_half(scales + 16);
		asm volatile("mov.b32 %0, 0x64006400;" : "=r"(magic));
	}

	/* Codes of one chunk to values: scale * (u - 7.5) + mean. */
	template <int CHUNK> __device__ __forceinline__ void expand(const place &at)
	{
		const __half2 sixteenth = __float2half2_rn(0.0625f),
			      minus = __float2half2_rn(-71.5f);
		const uint4 m = load_shared4(at.base + K::MEANS + at.q * 32 + CHUNK * 16);
		const uint32_t mu[4] = {m.x, m.y, m.z, m.w};

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t w = word[2 * CHUNK + i];
			const uint32_t shifted[4] = {w << 4, w, w >> 4, w >> 8};

#pragma unroll
			for (int e = 0; e < 4; e++) {
				const __half2 field = as_half2(code_under_1024(shifted[e], magic));

				/* Exactly u - 7.5 inside. */
				a[e][2 * CHUNK + i] = as_word(
					__hfma2(__hfma2(field, sixteenth, minus),
						as_half2(scale[i] * 0x10001u), as_half2(mu[e])));
			}
		}
	}

	/* Couples (x, y): chunks 0 and 1 of a step, or steps 2v and 2v + 1 of a chunk. */
	template <int V> __device__ __forceinline__ void turn(const place &at)
	{
		const uint4 t = load_shared4(at.base + K::TURNS + (V * 128 + at.thread) * 16);

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int u = V % 2 * 2 + i, row = V / 2;
			const __half2 c = as_half2(i ? t.z : t.x), s = as_half2(i ? t.w : t.y);
			uint32_t &xa = K::HALF_SPLIT ? a[u][row] : a[u % 2 * 2][row + u / 2 * 2];
			uint32_t &ya =
				K::HALF_SPLIT ? a[u][row + 2] : a[u % 2 * 2 + 1][row + u / 2 * 2];
			const __half2 x = as_half2(xa), y = as_half2(ya);

			xa = as_word(__hfma2(x, c, __hneg2(__hmul2(y, s))));
			ya = as_word(__hfma2(x, s, __hmul2(y, c)));
		}
	}

	__device__ __forceinline__ void part(int index, const place &at)
	{
		if (index == 0)
			expand<0>(at);
		else if (index == 1)
			expand<1>(at);
		else if (index == 2)
			turn<0>(at);
		else if (index == 3)
			turn<1>(at);
		else if (index == 4)
			turn<2>(at);
		else
			turn<3>(at);
	}
};

/**
 * Integer products of 64 tokens with the query images, left in flight; the RoPE keys are
 * made while they run. acc[f] is the sum against the byte masked to fields 0 … f; with one
 * sum, the byte shifted to count alike. Waits for products of before, by the way.
 */
template <class K>
static __device__ __forceinline__ void
content_products(uint32_t page, uint64_t query, const place &at,
		 int (&acc)[K::SUMS][K::COLUMNS / 2], rope_keys<K> &keys)
{
	using C = typename K::codes;
	/* Pages begin at multiples of 256: the permutation of chunks is one exclusive or. */
	const uint32_t row = page + (at.warp * 16 + at.lane % 16) * C::ROW_BYTES +
			     (at.lane / 16 ^ reverse3(at.lane % 8)) * 16;
	uint32_t raw[3][4], masked[2][C::FIELDS - 1][4];

	load_matrices(raw[0], row);
	load_matrices(raw[1], row ^ 32);
	keys.load(page, at);
	/* The page before: without this wait ptxas serialises every wgmma (C7514). */
	wgmma_wait<0>();
#pragma unroll
	for (int z = 0; z < C::STEPS; z++) {
		const int b = z % 3, c = z % 2;

#pragma unroll
		for (int f = 0; f < C::FIELDS - 1; f++) {
			const int shift = K::SUMS == 1 ? C::BITS * (C::FIELDS - 1 - f) : 0;
			const uint32_t mask =
				(((1u << (C::BITS * (f + 1))) - 1) << shift) * 0x01010101u;

#pragma unroll
			for (int i = 0; i < 4; i++)
				masked[c][f][i] = raw[b][i] << shift & mask;
		}
		wgmma_fence();
#pragma unroll
		for (int f = C::FIELDS - 1; f >= 0; f--) {
			/* Bytes to this step's image, as the descriptor counts. */
			const int k = (z * C::FIELDS + C::FIELDS - 1 - f) * 32;
			const uint64_t b_at =
				query + (uint64_t)(k / 128 * (K::COLUMNS * 128) + k % 128 >> 4);

			if (f == C::FIELDS - 1)
				wgmma_u8(acc[K::SUMS - 1], raw[b], b_at, z > 0);
			else
				wgmma_u8(acc[K::SUMS == 1 ? 0 : f], masked[c][f], b_at,
					 K::SUMS == 1 || z > 0);
		}
		wgmma_commit();
#pragma unroll
		for (int part = 0; part < rope_keys<K>::PARTS; part++)
			if ((part + 2) * C::STEPS / (rope_keys<K>::PARTS + 2) == z)
				keys.part(part, at);
		if (z + 1 < C::STEPS) {
			if (z > 0)
				wgmma_wait<1>();
			if (z + 2 < C::STEPS)
				load_matrices(raw[(z + 2) % 3], row ^ 32 * (z + 2));
		}
	}
}

/** The sums as content scores less the peak; @p factors: {offset, factor} of the rows. */
template <class K>
static __device__ __forceinline__ void
content_scores(const int (&acc)[K::SUMS][K::COLUMNS / 2], uint32_t factors, const float (&scale)[2],
	       const running<K::N> &run, float (&score)[K::N / 2])
{
	using C = typename K::codes;

#pragma unroll
	for (int c = 0; c < K::N / 8; c++) {
		const uint4 f = load_shared4(factors + c * 64);

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int j = 4 * c + i;
			const float add = __uint_as_float(i % 2 ? f.z : f.x),
				    factor = __uint_as_float(i % 2 ? f.w : f.y);
			float plane[K::PLANES];

#pragma unroll
			for (int h = 0; h < K::PLANES; h++) {
				int sum = acc[K::SUMS - 1][h * K::N / 2 + j];

#pragma unroll
				for (int k = 0; k < K::SUMS - 1; k++)
					sum += acc[k][h * K::N / 2 + j]
					       << (C::BITS * (C::FIELDS - 1 - k));
				plane[h] = (float)sum;
			}
			if (K::PLANES == 2)
				plane[0] = fmaf(plane[K::PLANES - 1], 1.f / 254.f, plane[0]);
			score[j] = fmaf(fmaf(plane[0], factor, add), scale[i / 2],
					-run.peak[j / 4 * 2 + j % 2]);
		}
	}
}

/** Probabilities to shared memory as [row][64 tokens], and their sums over this thread's. */
template <class K>
static __device__ __forceinline__ void
store_probabilities(const float (&score)[K::N / 2], const float (&scale)[2], uint32_t prob,
		    const place &at, float (&total)[K::N / 4], float (&offset)[K::N / 4])
{
	uint32_t packed[K::N / 4];

#pragma unroll
	for (int j = 0; j < K::N / 8; j++) {
		float a = exp2_fast(score[4 * j]), b = exp2_fast(score[4 * j + 1]);
		float c = exp2_fast(score[4 * j + 2]), d = exp2_fast(score[4 * j + 3]);

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

/** Scores of tokens that a row may not see, or that are not packed tokens, become MASKED. */
template <class K>
static __device__ __forceinline__ void mask_page(uint32_t first_token, uint32_t first_key,
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
		const bool seen = token[r] >= first_key && token[r] < limits[column];

		if (!seen)
			score[j] = MASKED;
		used[r] |= seen;
	}
	/* A scale past the end may be any bytes. */
	for (int r = 0; r < 2; r++)
		if (!used[r])
			scale[r] = 0.f;
}

#endif /* QMK_CUDA_ATTEND_SCORE_CUH */
