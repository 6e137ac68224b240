/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * 8-bit weights as DeepSeek stores them: F8_E4M3 codes, and beside tensor "w" the float
 * scales of its blocks of 128 x 128 in "w_scale_inv" [ceil(rows / 128)][ceil(columns / 128)].
 * A weight is its code times its block's scale.
 */
#ifndef QMW_FP8_H
#define QMW_FP8_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/checkpoint.h"

/** True when tensor @p name is there and stored as F8_E4M3. */
bool qmw_fp8_stored(const struct qmw_checkpoint *checkpoint, const char *name);

/** Checks that the scales of tensor @p name are there and of their shape. */
qmla_status_t qmw_fp8_check(const struct qmw_checkpoint *checkpoint, const char *name,
			    uint64_t rows, uint64_t columns);

/** Multiplies codes that were expanded to float, rows [@p first, @p first + @p count) of the
 * tensor, by their scales. Errors as qmw_checkpoint_read. */
qmla_status_t qmw_fp8_scale(const struct qmw_checkpoint *checkpoint, const char *name,
			    uint64_t rows, uint64_t columns, uint64_t first, uint64_t count,
			    float *values);

/** Reads the tensor [@p rows, @p columns] as it is: @p codes [rows][columns], none of them NaN, and
 * for each row its blocks' scales, @p scales [rows][ceil(columns / 128)]. Errors as
 * qmw_checkpoint_read. */
qmla_status_t qmw_fp8_read(const struct qmw_checkpoint *checkpoint, const char *name, uint64_t rows,
			   uint64_t columns, uint8_t *codes, float *scales);

#endif /* QMW_FP8_H */
