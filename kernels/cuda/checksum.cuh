/* SPDX-License-Identifier: Apache-2.0 */
/** @file CUDA slot of the ops table (kernels/ops.h): checksum. */
#ifndef QMK_CUDA_CHECKSUM_CUH
#define QMK_CUDA_CHECKSUM_CUH

extern "C" {
#include "kernels/ops.h"

/** Checksums of pages, computed on the device. */
qmla_status_t qmk_cuda_checksum(const struct qmk_checksum_args *args);
}

#endif /* QMK_CUDA_CHECKSUM_CUH */
