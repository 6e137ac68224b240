/* SPDX-License-Identifier: Apache-2.0 */
/** @file Output of one page, and of one item, by one warpgroup. */
#ifndef QMK_CUDA_ATTEND_OUTPUT_CUH
#define QMK_CUDA_ATTEND_OUTPUT_CUH

#include "kernels/cuda/attend_score.cuh"

/*
 * Output rows: from 16 tokens' words of codes, the A fragment of one m64 tile of a chunk.
 * A word holds two tokens' two bytes; tile t has field 2t % FIELDS of byte 2t / FIELDS in
 * its upper eight rows and the next field in its lower eight, masked, not shifted.
 */
template <class C>
static __device__ __forceinline__ void expand_tile(uint32_t first, uint32_t second, int t,
						   uint32_t (&a)[4])
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int field = (2 * t + i) % C::FIELDS, byte = (2 * t + i) / C::FIELDS;
		const uint32_t mask = ((1u << (C::BITS * (field + 1))) - 1) * 0x00010001u;
		const uint32_t upper = byte ? __byte_perm(first, 0, 0x4341) : first;
		const uint32_t lower = byte ? __byte_perm(second, 0, 0x4341) : second;
		/* A byte spread by the permutation has nothing above it to mask. */
		const bool whole = byte && field + 1 == C::FIELDS;

		a[i] = whole ? upper : upper & mask;
		a[i + 2] = whole ? lower : lower & mask;
	}
}

/**
 * Output += V P: 32 tiles of 16 tokens, in batches whose fragments are made while the one
 * before runs. A matrix load has the words of two chunks. The last batches are left in
 * flight.
 */
template <class K>
static __device__ __forceinline__ void accumulate(uint32_t page, uint64_t prob, const place &at,
						  float (&out)[8][K::N / 2])
{
	using C = typename K::codes;
	constexpr int TILES = 4;                  /* of a batch */
	constexpr int LOAD = 2 * C::FIELDS;       /* tiles of a matrix load */
	constexpr int LOADS = C::WARP_CHUNKS / 2; /* of 16 tokens */
	const uint32_t row =
		page + (at.lane % 8 + at.lane / 8 % 2 * 8) * C::ROW_BYTES +
		((at.warp * C::WARP_CHUNKS + at.lane / 16) ^ reverse3(at.lane % 8)) * 16;
	uint32_t word[2][4], a[2][TILES][4];

	load_matrices_transposed(word[0], row);
#pragma unroll
	for (int n = 0; n < 32; n += TILES) {
		const int b = n / TILES % 2, next = n / LOAD + 1;

		if (n % LOAD == 0 && next < 32 / LOAD)
			load_matrices_transposed(word[next % 2],
						 (row ^ next % LOADS * 32) +
							 next / LOADS * 16 * C::ROW_BYTES);
		if (n >= 2 * TILES)
			wgmma_wait<1>();
#pragma unroll
		for (int t = 0; t < TILES; t++) {
			const int chunk = (n + t) / C::FIELDS % 2;
			const uint32_t(&w)[4] = word[n / LOAD % 2];

			expand_tile<C>(w[2 * chunk], w[2 * chunk + 1], (n + t) % C::FIELDS,
				       a[b][t]);
		}
		wgmma_fence();
#pragma unroll
		for (int t = 0; t < TILES; t++)
			wgmma_f16(out[(n + t) % 8], a[b][t], prob + n / 8 * 2, 1);
		wgmma_commit();
	}
}

/**
 * Raises the peaks to what this page needs and rescales what was summed before. Scores are
 * relative to the peaks, before and after.
 */
template <class K>
static __device__ void raise_peaks(float (&score)[K::N / 2], uint8_t *shared, const place &at,
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
		float rise = MASKED, shrink;

#pragma unroll
		for (int w = 0; w < 4; w++)
			rise = fmaxf(rise, scratch[(w * K::N + column) * 2]);
		/* A column's first token sets its peak, at any height. */
		if (rise < 0.5f * MASKED)
			rise = 0.f;
		else if (run.unset >> j & 1)
			run.unset &= ~(1u << j);
		else
			rise = fmaxf(rise, 0.f);
		shrink = exp2_fast(fminf(-rise, 0.f));
		run.total[j] *= shrink;
		run.offset[j] *= shrink;
		run.peak[j] += rise;
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int k = 4 * (j / 2) + 2 * r + j % 2;

			score[k] -= rise;
#pragma unroll
			for (int t = 0; t < 8; t++)
				out[t][k] *= shrink;
		}
	}
}

/** Where the result of an item goes: to the workspace, or out when it is the whole. */
struct target {
	bool whole;
	uint64_t row0; /* whole: of the output array; else of the partial results */
	uint32_t rows; /* that exist, counted from row0 */
};

/** Four values of one row, columns @p dim on. */
static __device__ __forceinline__ void write_four(const attend_params &p, const target &to,
						  uint64_t row, uint32_t dim, bool seen, float4 v)
{
	if (!to.whole) {
		*(float4 *)(p.plan.partial + row * DC + dim) = v;
		return;
	}
	/* A query that saw no key has an output of zeros. */
	if (p.content_mean && seen) {
		const float4 m = *(const float4 *)(p.content_mean + dim);

		v = make_float4(v.x + m.x, v.y + m.y, v.z + m.z, v.w + m.w);
	}
	qmk_store4(p.args.output, row * DC + dim, p.args.output_dtype, v);
}

/** One row's columns of this thread; @p k its element in the accumulators. */
template <class K>
static __device__ __forceinline__ void write_row(const attend_params &p, const target &to,
						 uint64_t row, const place &at, int k, float factor,
						 float offset, const float (&out)[8][K::N / 2])
{
	using C = typename K::codes;

#pragma unroll
	for (int c = 0; c < C::WARP_CHUNKS; c++) {
		/* Lane g has bytes 2g and 2g + 1 of chunk c: 2 * FIELDS dimensions in a row. */
		const uint32_t dim =
			(at.warp * C::WARP_CHUNKS + c) * 16 * C::FIELDS + at.g * 2 * C::FIELDS;
		float value[2 * C::FIELDS];

#pragma unroll
		for (int byte = 0; byte < 2; byte++) {
			float below = 0.f;

#pragma unroll
			for (int f = 0; f < C::FIELDS; f++) {
				const int field = byte * C::FIELDS + f;
				float sum = out[c * C::FIELDS + field / 2][k + field % 2 * 2];

				value[field] =
					(sum - below) * factor / (1 << (C::BITS * f)) - offset;
				below = sum;
			}
		}
#pragma unroll
		for (int i = 0; i < 2 * C::FIELDS; i += 4)
			write_four(p, to, row, dim + i, factor > 0.f,
				   make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]));
	}
}

/** Sums of one warpgroup over its threads, then its rows to where they go. */
template <class K>
static __device__ __forceinline__ void
write_item(const attend_params &p, const target &to, uint8_t *shared, const place &at,
	   const running<K::N> &run, const float (&out)[8][K::N / 2])
{
	using C = typename K::codes;
	float *scratch = (float *)(shared + K::SCRATCH) + at.group * 4 * K::N * 2;
	float *lse = to.whole ? p.args.lse : p.plan.partial_lse;

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
		const uint32_t column = j / 2 * 8 + 2 * at.q + j % 2;
		const uint32_t r = at.head_part * K::N + column;
		float total = 0.f, offset = 0.f, factor;

		for (int w = 0; w < 4; w++) {
			float2 part = *(float2 *)&scratch[(w * K::N + column) * 2];

			total += part.x;
			offset += part.y;
		}
		if (r >= to.rows)
			continue;
		factor = total > 0.f ? 1.f / total : 0.f;
		/* The codes went in as u * 2^-24. */
		write_row<K>(p, to, to.row0 + r, at, 4 * (j / 2) + j % 2, factor * 16777216.f,
			     offset * C::OFFSET * factor, out);
		if (at.warp == 0 && at.g == 0 && lse)
			lse[to.row0 + r] = total > 0.f ? run.peak[j] + log2f(total) : -CUDART_INF_F;
	}
	group_sync(at.barrier, 128); /* scratch is free again */
}

/*
 * Joins what the warpgroups of one item have summed into the first one's registers.
 * Thread i of every group holds the same elements, so registers are exchanged as they are,
 * 16 float4 at a time. A sender has two barriers, "buffer free" and "buffer full", of all
 * 128 threads of the other side; @p exchanges counts what a sender has sent in all.
 */
template <class K>
static __device__ __forceinline__ void join_groups(uint32_t base, const place &at,
						   running<K::N> &run, float (&out)[8][K::N / 2],
						   uint32_t &exchanges)
{
	constexpr int ROUNDS = K::N / 16;
	const uint32_t slot = base + K::MERGE + at.thread * 16;

	/* A peak that no token has set gives way to any other. */
#pragma unroll
	for (int j = 0; j < K::N / 4; j++)
		if (run.unset >> j & 1)
			run.peak[j] = MASKED;
#pragma unroll 1
	for (uint32_t from = 1; from < K::LANES; from++) {
		const bool sender = at.lane_set == from;
		const uint32_t free = base + K::JOIN_BARRIERS + 16 * (from - 1), full = free + 8;
		float mine[K::N / 4], theirs[K::N / 4];

		if (!sender && at.lane_set != 0)
			continue;
		if (!sender)
			barrier_arrive(free); /* the group before is done with the buffer */
		/* First the sums of each column, in the buffer's first N / 4 float4. */
		if (sender) {
			barrier_wait(free, exchanges & 1);
#pragma unroll
			for (int j = 0; j < K::N / 4; j++)
				asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%3};" ::"r"(
						     slot + j * 2048),
					     "f"(run.total[j]), "f"(run.offset[j]), "f"(run.peak[j])
					     : "memory");
			barrier_arrive(full);
		} else {
			barrier_wait(full, exchanges & 1);
#pragma unroll
			for (int j = 0; j < K::N / 4; j++) {
				float total, offset, peak, joined;

				asm volatile(
					"{\n.reg .f32 t;\nld.shared.v4.f32 {%0,%1,%2,t}, [%3];\n}\n"
					: "=f"(total), "=f"(offset), "=f"(peak)
					: "r"(slot + j * 2048)
					: "memory");
				joined = fmaxf(run.peak[j], peak);
				mine[j] = exp2_fast(run.peak[j] - joined);
				theirs[j] = exp2_fast(peak - joined);
				run.peak[j] = joined;
				run.total[j] = run.total[j] * mine[j] + total * theirs[j];
				run.offset[j] = run.offset[j] * mine[j] + offset * theirs[j];
			}
			barrier_arrive(free);
		}
#pragma unroll
		for (int round = 0; round < ROUNDS; round++) {
			const uint32_t parity = exchanges + 1 + round & 1;

			if (sender) {
				barrier_wait(free, parity);
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
				barrier_arrive(full);
			} else {
				barrier_wait(full, parity);
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
				if (round + 1 < ROUNDS)
					barrier_arrive(free);
			}
		}
	}
	exchanges += 1 + ROUNDS;
}

#endif /* QMK_CUDA_ATTEND_OUTPUT_CUH */
