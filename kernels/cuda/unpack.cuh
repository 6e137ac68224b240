/* SPDX-License-Identifier: Apache-2.0 */
/** @file CUDA slot of the ops table (kernels/ops.h): unpack. */
#ifndef QMK_CUDA_UNPACK_CUH
#define QMK_CUDA_UNPACK_CUH

extern "C" {
#include "kernels/ops.h"

/** Pages back into rows of values, on the device. */
qmla_status_t qmk_cuda_unpack(const struct qmk_unpack_args *args);
}

#endif /* QMK_CUDA_UNPACK_CUH */
