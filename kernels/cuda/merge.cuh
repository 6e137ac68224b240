/* SPDX-License-Identifier: Apache-2.0 */
/** @file CUDA slot of the ops table (kernels/ops.h): merge. */
#ifndef QMK_CUDA_MERGE_CUH
#define QMK_CUDA_MERGE_CUH

extern "C" {
#include "kernels/ops.h"

/** Merges partial results by their log-sum-exp, on the device. */
qmla_status_t qmk_cuda_merge(const struct qmk_merge_args *args);
}

#endif /* QMK_CUDA_MERGE_CUH */
