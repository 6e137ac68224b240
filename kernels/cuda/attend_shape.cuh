/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What the parts of the Hopper kernel share: the shape of a format's codes, the shape of
 * one kernel with its map of shared memory, and the order of staged queries.
 */
#ifndef QMK_CUDA_ATTEND_SHAPE_CUH
#define QMK_CUDA_ATTEND_SHAPE_CUH

#include <math_constants.h>

#include "kernels/cuda/attend_params.cuh"
#include "kernels/cuda/wgmma.cuh"

#define DC     512
#define DR     64
#define LOG2E  1.4426950408889634f
#define MASKED -1e30f

/** What the codes of a plane are: bits, codes a byte, images of the query. */
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

/** Shape of one kernel: N query rows a warpgroup, PLANES of 8 bits a query. */
template <int BITS_, int N_, int GROUPS_, int HEADSPLIT_, int PLANES_, int REGISTERS_,
	  int PRODUCER_REGISTERS_, bool HALF_SPLIT_>
struct kernel_shape {
	using codes = code_traits<BITS_>;
	static constexpr int N = N_;
	static constexpr int GROUPS = GROUPS_;       /* consumer warpgroups */
	static constexpr int HEADSPLIT = HEADSPLIT_; /* warpgroups that share a page, N rows each */
	static constexpr int LANES = GROUPS / HEADSPLIT;
	static constexpr int PLANES = PLANES_;
	static constexpr int REGISTERS = REGISTERS_;
	static constexpr int PRODUCER_REGISTERS = PRODUCER_REGISTERS_;
	static constexpr bool HALF_SPLIT = HALF_SPLIT_; /* pairing of the RoPE */
	static constexpr int ROWS = N * HEADSPLIT;
	static constexpr int COLUMNS = N * PLANES; /* of the content product: planes side by side */
	static constexpr int THREADS = GROUPS * 128 + 128;
	static constexpr int IMAGE = 512 * PLANES + 128; /* staged bytes of a query row */
	/*
	 * Accumulators of the content product. With one, a byte masked to its lower fields is
	 * shifted up so that all images count alike: more instructions, fewer registers.
	 */
	static constexpr int SUMS = codes::FIELDS * COLUMNS / 2 <= 16 ? codes::FIELDS : 1;

	/* Shared memory, in bytes. */
	static constexpr int QUERY = 0; /* content images */
	static constexpr int QUERY_BYTES = ROWS * 512 * PLANES;
	static constexpr int KEY_QUERY = QUERY + QUERY_BYTES; /* RoPE images as staged */
	static constexpr int KEY_QUERY_BYTES = ROWS * 128;
	static constexpr int PROB = KEY_QUERY + KEY_QUERY_BYTES;
	static constexpr int TURNS = PROB + GROUPS * 2 * N * 128;
	static constexpr int MEANS = TURNS + 8192;
	static constexpr int FACTORS = MEANS + 128;
	static constexpr int LIMITS = FACTORS + ROWS * 8;
	static constexpr int SCRATCH = LIMITS + ROWS * 4;
	static constexpr int MERGE = (SCRATCH + GROUPS * 4 * N * 8 + 127) / 128 * 128;
	static constexpr int MERGE_BYTES = LANES > 1 ? 16 * 128 * 16 : 0; /* 16 float4 a thread */
	static constexpr int TURNED = (MERGE + MERGE_BYTES + 1023) / 1024 * 1024;
	static constexpr int BARRIERS = 256;
	static constexpr int ROOM =
		(227 * 1024 - TURNED - BARRIERS) / (codes::PAGE_BYTES + KEY_QUERY_BYTES);
	/* A multiple of LANES: else a warpgroup could meet a barrier's phase twice. */
	static constexpr int STAGES = (ROOM < 12 ? ROOM : 12) / LANES * LANES;
	static constexpr int STAGES_AT = TURNED + STAGES * KEY_QUERY_BYTES;
	static constexpr int BARRIERS_AT = STAGES_AT + STAGES * codes::PAGE_BYTES;
	static constexpr int JOIN_BARRIERS = BARRIERS_AT + 16 * STAGES + 8;
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

/** Byte @p byte of row @p n in an image of N rows: K-major, 128-byte swizzle. */
template <int N> static __device__ __forceinline__ uint32_t image_at(uint32_t n, uint32_t byte)
{
	uint32_t block = byte / 128, k = byte % 128;

	return block * N * 128 + n / 8 * 1024 + n % 8 * 128 + (k / 16 ^ n % 8) * 16 + k % 16;
}

/** dim of position @p k of the RoPE image, as attend_keys lays out its registers. */
static __device__ __forceinline__ uint32_t rope_dim_at(uint32_t k)
{
	uint32_t step = k / 16, chunk = k / 8 % 2, q = k / 2 % 4, half = k % 2;

	return 32 * chunk + 8 * q + step + 4 * half;
}

#endif /* QMK_CUDA_ATTEND_SHAPE_CUH */
