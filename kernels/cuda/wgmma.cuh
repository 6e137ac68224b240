/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The few Hopper instructions that the attention kernel uses: wgmma with A in
 * registers, mbarriers, bulk copies, named barriers, matrix loads and stores.
 * Source: PTX ISA 8.x, "Asynchronous Warpgroup Level Matrix Multiply" and
 * "Data Movement: cp.async.bulk". sm_90a only.
 */
#ifndef QMK_CUDA_WGMMA_CUH
#define QMK_CUDA_WGMMA_CUH

#include <stdint.h>

/** Shared-memory descriptor: K-major, 128-byte swizzle, 1,024 bytes between groups of 8 rows. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address)
{
	return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 |
	       1ull << 62;
}

static __device__ __forceinline__ void wgmma_fence()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void wgmma_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define I4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define A4(a)    "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/** d (64 x N, fp32) = or += A (64 x 16, fp16, registers) B (16 x N, shared memory). */
static __device__ __forceinline__ void wgmma_f16(float (&d)[8], const uint32_t (&a)[4], uint64_t b,
						 int add)
{
	asm volatile(
		"{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
		"wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
		"{%8,%9,%10,%11}, %12, p, 1, 1, 0;\n}\n"
		: D4(d, 0), D4(d, 4)
		: A4(a), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_f16(float (&d)[16], const uint32_t (&a)[4], uint64_t b,
						 int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
		     "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
		     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
		     "{%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}\n"
		     : D4(d, 0), D4(d, 4), D4(d, 8), D4(d, 12)
		     : A4(a), "l"(b), "r"(add));
}

/** d (64 x N, int32) = or += A (64 x 32, u8, registers) B (32 x N, s8, shared memory). */
static __device__ __forceinline__ void wgmma_u8(int (&d)[8], const uint32_t (&a)[4], uint64_t b,
						int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
		     "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%0,%1,%2,%3,%4,%5,%6,%7}, "
		     "{%8,%9,%10,%11}, %12, p;\n}\n"
		     : I4(d, 0), I4(d, 4)
		     : A4(a), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_u8(int (&d)[16], const uint32_t (&a)[4], uint64_t b,
						int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
		     "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
		     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
		     "{%16,%17,%18,%19}, %20, p;\n}\n"
		     : I4(d, 0), I4(d, 4), I4(d, 8), I4(d, 12)
		     : A4(a), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_u8(int (&d)[32], const uint32_t (&a)[4], uint64_t b,
						int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
		     "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 "
		     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
		     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
		     "{%32,%33,%34,%35}, %36, p;\n}\n"
		     : I4(d, 0), I4(d, 4), I4(d, 8), I4(d, 12), I4(d, 16), I4(d, 20), I4(d, 24),
		       I4(d, 28)
		     : A4(a), "l"(b), "r"(add));
}

#undef D4
#undef I4
#undef A4

static __device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
		     : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
		     "r"(bytes)
		     : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
	uint32_t done;

	do {
		asm volatile("{\n.reg .pred p;\n"
			     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
			     "selp.u32 %0, 1, 0, p;\n}\n"
			     : "=r"(done)
			     : "r"(barrier), "r"(parity)
			     : "memory");
	} while (!done);
}

/** Global to shared, @p bytes a multiple of 16; completes on @p barrier. */
static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
						 uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
		     "[%1], %2, [%3];" ::"r"(to),
		     "l"(from), "r"(bytes), "r"(barrier)
		     : "memory");
}

/** The same for bytes that no one else will read: first to leave the L2. */
static __device__ __forceinline__ void bulk_copy_once(uint32_t to, const void *from, uint32_t bytes,
						      uint32_t barrier, uint64_t policy)
{
	asm volatile(
		"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
		"[%0], [%1], %2, [%3], %4;" ::"r"(to),
		"l"(from), "r"(bytes), "r"(barrier), "l"(policy)
		: "memory");
}

static __device__ __forceinline__ uint64_t evict_first_policy()
{
	uint64_t policy;

	asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

/** Named barrier over @p threads threads. */
static __device__ __forceinline__ void group_sync(int id, int threads)
{
	asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/** Named barrier that also joins a vote: true when any thread's is. */
static __device__ __forceinline__ bool group_any(int id, int threads, bool vote)
{
	int any;

	asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %3, 0;\n"
		     "barrier.cta.red.or.pred q, %1, %2, p;\nselp.s32 %0, 1, 0, q;\n}\n"
		     : "=r"(any)
		     : "r"(id), "r"(threads), "r"((int)vote)
		     : "memory");
	return any;
}

/** Makes this thread's shared-memory writes visible to wgmma and bulk copies. */
static __device__ __forceinline__ void async_proxy_fence()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(address));
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(address));
}

static __device__ __forceinline__ void store_matrices_transposed(uint32_t address, uint32_t a,
								 uint32_t b, uint32_t c, uint32_t d)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
			     address),
		     "r"(a), "r"(b), "r"(c), "r"(d)
		     : "memory");
}

template <int REGISTERS> static __device__ __forceinline__ void registers_raise()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void registers_lower()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif /* QMK_CUDA_WGMMA_CUH */
