/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Attention over a plain BF16 cache with the structure of the kernel for packed pages: what
 * packing is measured against on the same card. For benchmarks and tests; sm_90 only.
 *
 * A page holds 64 tokens of 576 BF16 values, content then the key after rotation, in the
 * order of the tensor cores' 128-byte swizzle: value k of token t is at byte
 * 8192 (k / 64) + 128 t + 16 ((k % 64 / 8) ^ (t % 8)) + 2 (k % 8).
 */
#ifndef QMK_CUDA_BASELINE_H
#define QMK_CUDA_BASELINE_H

#include "kernels/ops.h"

#define QMK_BASELINE_PAGE_BYTES (64u * 576u * 2u)

#ifdef __cplusplus
extern "C" {
#endif

/** Byte of value @p k of token @p t in a page. */
static inline uint32_t qmk_baseline_at(uint32_t t, uint32_t k)
{
	return k / 64 * 8192 + t * 128 + ((k % 64 / 8) ^ (t % 8)) * 16 + k % 8 * 2;
}

/**
 * As the table's attend, after its plan with the same arguments. `pool` holds the pages above,
 * `layout` is that of C4R4 at 512|64 (it sizes plan and workspace); at most 32 query rows a
 * sequence, no BF16 rows, no constants. QMLA_ERR_UNSUPPORTED otherwise or on another device.
 */
qmla_status_t qmk_cuda_attend_baseline(const struct qmk_attend_args *args);

#ifdef __cplusplus
}
#endif

#endif /* QMK_CUDA_BASELINE_H */
