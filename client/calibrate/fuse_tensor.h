/* SPDX-License-Identifier: Apache-2.0 */
/** @file Which tensors of a checkpoint a fusion changes, and their new bytes. */
#ifndef QMW_FUSE_TENSOR_H
#define QMW_FUSE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/transform.h"
#include "client/model/checkpoint.h"
#include "client/model/config.h"
#include "client/model/rope.h"
#include "client/model/safetensors.h"

struct qmw_fuse_plan;

/**
 * Checks that @p layers, one for each cache layer, fit the model and that every tensor to be
 * changed is there with its shape. What is passed is the caller's and outlives the plan. Logs:
 * QMLA_ERR_INVALID_ARGUMENT (dimensions, R not orthogonal, scales not positive), and as
 * qmw_checkpoint_check.
 */
qmla_status_t qmw_fuse_plan_create(const struct qmw_checkpoint *checkpoint,
				   const struct qmw_config *config, const struct qmw_rope *rope,
				   const struct qmw_transform *layers, uint32_t count,
				   struct qmw_fuse_plan **plan);
void qmw_fuse_plan_destroy(struct qmw_fuse_plan *plan); /**< accepts NULL */

/**
 * The bytes that replace those of @p tensor, which is one of @p file: malloc'ed, as many as before.
 * *bytes = NULL when the tensor stays as it is. @p cast_error: |W' - cast(W')|_F / |W'|_F, or 0.
 * QMLA_ERR_CORRUPT: a value that is not finite in the tensor's dtype; and as qmw_checkpoint_read.
 */
qmla_status_t qmw_fuse_plan_replace(const struct qmw_fuse_plan *plan, const char *path,
				    const struct qmw_tensor *tensor, void **bytes,
				    double *cast_error);

/**
 * The scale of a layer's latents as the fused norm stores it: S rounded to that tensor's dtype,
 * @p scale [d_c]; ones for a layer without.
 */
qmla_status_t qmw_fuse_plan_scale(const struct qmw_fuse_plan *plan, uint32_t layer, double *scale);

#endif /* QMW_FUSE_TENSOR_H */
