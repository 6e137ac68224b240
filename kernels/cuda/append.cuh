/* SPDX-License-Identifier: Apache-2.0 */
/** @file CUDA slots of the ops table (kernels/ops.h): append and its workspace. */
#ifndef QMK_CUDA_APPEND_CUH
#define QMK_CUDA_APPEND_CUH

extern "C" {
#include "kernels/ops.h"

/** Bytes of device workspace that append wants. */
size_t qmk_cuda_append_workspace(const struct qmk_append_args *args);

/** Rows to tails, full tails to pages, on the device. */
qmla_status_t qmk_cuda_append(const struct qmk_append_args *args);
}

#endif /* QMK_CUDA_APPEND_CUH */
