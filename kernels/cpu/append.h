/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Append of kernels/ops.h on the CPU: rows are stored here, full tails go to the variant's
 * pack, which is passed in. Any thread; nothing here blocks.
 */
#ifndef QMK_CPU_APPEND_H
#define QMK_CPU_APPEND_H

#include "kernels/ops.h"

/** Bytes of workspace: what pack wants. */
size_t qmk_cpu_append_workspace(const struct qmk_append_args *args,
				size_t (*pack_workspace)(const struct qmk_pack_args *));

/** Stores rows, packs what fills. QMLA_ERR_INVALID_ARGUMENT with the reason logged. */
qmla_status_t qmk_cpu_append(const struct qmk_append_args *args,
			     qmla_status_t (*pack)(const struct qmk_pack_args *));

#endif /* QMK_CPU_APPEND_H */
