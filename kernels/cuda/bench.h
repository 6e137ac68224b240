/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What the GPU benchmarks share: device memory, repeatable random data, timing. A failure of
 * the device ends the program with its reason: there is nothing to go on with. Main thread.
 */
#ifndef QMK_CUDA_BENCH_H
#define QMK_CUDA_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

/** Ends the program when a CUDA call (an error's number) or a kernel's status failed. */
void qmk_gpu_must(int error, const char *what);
void qmk_gpu_must_ok(qmla_status_t status, const char *what);

/** Device memory; free with qmk_gpu_free. */
void *qmk_gpu_bytes(size_t bytes);
void *qmk_gpu_copy(const void *host, size_t bytes);
void qmk_gpu_free(void *memory);

uint32_t qmk_gpu_random(uint64_t *state); /**< 31 bits */

/** @p entries random numbers below @p limit, on the device. */
uint32_t *qmk_gpu_random_table(uint32_t entries, uint32_t limit, uint64_t *state);

/** @p count BF16 values of about unit size, on the device. */
void *qmk_gpu_random_bf16(size_t count, uint64_t *state);

/**
 * Median milliseconds of one call of @p run(user, k): 30 samples, each of k = 0 …
 * rotation - 1, so that data rotates and the L2 does not help.
 */
double qmk_gpu_time(void (*run)(void *user, uint32_t k), void *user, uint32_t rotation);

/** Bytes a millisecond, read plus written, of a copy of 1 GiB; measured at the first call. */
double qmk_gpu_copy_rate(void);

/**
 * Attention over packed pages, @p heads 0: every case. Prints a JSON line each.
 */
void qmk_bench_attend(uint32_t heads);

/** Pages written, read and checked, beside the copy; a JSON line each. */
void qmk_bench_pages(void);

/** Decode tokens appended to 128 tails; a JSON line a case. */
void qmk_bench_append(void);

#endif /* QMK_CUDA_BENCH_H */
