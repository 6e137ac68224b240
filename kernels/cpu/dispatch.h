/* SPDX-License-Identifier: Apache-2.0 */
/** @file The compiled variants of the CPU kernels, and the choice among them. */
#ifndef QMK_CPU_DISPATCH_H
#define QMK_CPU_DISPATCH_H

#include <stdint.h>

#include "kernels/ops.h"

/** One variant. */
struct qmk_cpu_table {
	struct qmk_ops ops; /**< name: "cpu-base", "cpu-avx2", "cpu-avx512" */
	uint64_t (*page_checksum)(const void *page, size_t bytes);
};

/** The best variant that this processor runs. Any thread; never blocks. */
const struct qmk_cpu_table *qmk_cpu_best(void);

/**
 * Variant @p index, from the best down, or NULL past the last one; only those that
 * this processor runs. For tests and benchmarks.
 */
const struct qmk_cpu_table *qmk_cpu_variant(unsigned index);

#endif /* QMK_CPU_DISPATCH_H */
