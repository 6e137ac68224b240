/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/dispatch.h"

#include <stdatomic.h>
#include <stdbool.h>

extern const struct qmk_cpu_table qmk_cpu_table_base;
#if defined(QMK_X86_VARIANTS)
extern const struct qmk_cpu_table qmk_cpu_table_avx2;
extern const struct qmk_cpu_table qmk_cpu_table_avx512;

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl");
}
#endif

const struct qmk_cpu_table *qmk_cpu_variant(unsigned index)
{
	const struct qmk_cpu_table *usable[3];
	unsigned count = 0;

#if defined(QMK_X86_VARIANTS)
	if (has_avx512())
		usable[count++] = &qmk_cpu_table_avx512;
	if (has_avx2())
		usable[count++] = &qmk_cpu_table_avx2;
#endif
	usable[count++] = &qmk_cpu_table_base;
	return index < count ? usable[index] : NULL;
}

const struct qmk_cpu_table *qmk_cpu_best(void)
{
	static const struct qmk_cpu_table *_Atomic best;
	/* Relaxed: every thread that finds none works out the same constant. */
	const struct qmk_cpu_table *table = atomic_load_explicit(&best, memory_order_relaxed);

	if (!table) {
		table = qmk_cpu_variant(0);
		atomic_store_explicit(&best, table, memory_order_relaxed);
	}
	return table;
}
