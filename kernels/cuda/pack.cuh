/* SPDX-License-Identifier: Apache-2.0 */
/** @file CUDA slots of the ops table (kernels/ops.h): pack and its workspace. */
#ifndef QMK_CUDA_PACK_CUH
#define QMK_CUDA_PACK_CUH

extern "C" {
#include "kernels/ops.h"

/** Bytes of device workspace that pack wants. */
size_t qmk_cuda_pack_workspace(const struct qmk_pack_args *args);

/** Quantises rows into pages, on the device. */
qmla_status_t qmk_cuda_pack(const struct qmk_pack_args *args);
}

#endif /* QMK_CUDA_PACK_CUH */
