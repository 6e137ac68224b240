/* SPDX-License-Identifier: Apache-2.0 */
/** @file CUDA slots of the ops table (kernels/ops.h): attend, its plan and workspace. */
#ifndef QMK_CUDA_ATTEND_CUH
#define QMK_CUDA_ATTEND_CUH

extern "C" {
#include "kernels/ops.h"

size_t qmk_cuda_attend_workspace(const struct qmk_attend_args *args);
qmla_status_t qmk_cuda_plan(const struct qmk_attend_args *args);
qmla_status_t qmk_cuda_attend(const struct qmk_attend_args *args);
}

/** Query rows that one CTA takes: how the batch is cut into groups. */
uint32_t qmk_attend_group_rows(const struct qmk_attend_args *args, uint32_t rows);

/** Partial results that one packed item leaves. */
uint32_t qmk_attend_lanes(const struct qmk_attend_args *args, uint32_t group_rows);

/** CTAs a multiprocessor for the packed tiles. */
uint32_t qmk_attend_parts_per_sm(const struct qmk_attend_args *args, uint32_t group_rows);

#endif /* QMK_CUDA_ATTEND_CUH */
