/* SPDX-License-Identifier: Apache-2.0 */
/** @file quantmla.json and quantmla.safetensors beside fused weights (docs/format.md, 7). */
#ifndef QMW_FUSE_CONSTANTS_H
#define QMW_FUSE_CONSTANTS_H

#include <qmla/status.h>

#include "client/calibrate/fuse_checkpoint.h"
#include "client/calibrate/fuse_files.h"
#include "client/calibrate/fuse_tensor.h"
#include "client/model/config.h"

struct qmw_fuse_constants {
	const struct qmw_fuse_job *job;
	const struct qmw_fuse_plan *plan;
	const struct qmw_config *config;
	const struct qmw_fuse_report *report; /**< its digests */
};

/** Checks the job's texts before any work. Logs; QMLA_ERR_INVALID_ARGUMENT. */
qmla_status_t qmw_fuse_constants_check(const struct qmw_fuse_job *job);

/** Writes both files. Errors as qmw_fuse_files_write and qmw_safetensors_write. */
qmla_status_t qmw_fuse_constants_write(const struct qmw_fuse_constants *constants,
				       const struct qmw_fuse_files *files);

#endif /* QMW_FUSE_CONSTANTS_H */
