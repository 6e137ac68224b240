/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A file of equally long blocks of floats, one a calibration sequence: hidden states and
 * sub-layer inputs stay on the disk, so that memory does not grow with their number. Written
 * under a temporary name, which a crash leaves behind; complete once it has its own name.
 */
#ifndef QMW_CALIBRATE_ROW_FILE_H
#define QMW_CALIBRATE_ROW_FILE_H

#include <stdint.h>

#include <qmla/status.h>

#include "common/digest.h"

struct qmw_row_file;

/**
 * Creates @p path (its temporary) for @p blocks blocks of @p floats values; @p tag says what
 * run it belongs to. Logs the path: QMLA_ERR_NO_SPACE, QMLA_ERR_PERMISSION, QMLA_ERR_IO,
 * QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_row_file_create(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				  uint32_t blocks, uint64_t floats, struct qmw_row_file **file);

/**
 * Opens a complete file. QMLA_ERR_NOT_FOUND (nothing there, not logged), QMLA_ERR_CORRUPT
 * (another run's, another shape, cut short: not logged, make it again), QMLA_ERR_IO.
 */
qmla_status_t qmw_row_file_open(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				uint32_t blocks, uint64_t floats, struct qmw_row_file **file);

/** Writes block @p index. Any thread. QMLA_ERR_NO_SPACE, QMLA_ERR_IO: logged. */
qmla_status_t qmw_row_file_write(struct qmw_row_file *file, uint32_t index, const float *values);

/** Reads block @p index. Any thread. QMLA_ERR_IO: logged. */
qmla_status_t qmw_row_file_read(const struct qmw_row_file *file, uint32_t index, float *values);

/** Flushes a created file to the disk and gives it its name; it stays readable. */
qmla_status_t qmw_row_file_finish(struct qmw_row_file *file);

/** Closes; removes a file that was not finished. Accepts NULL. */
void qmw_row_file_close(struct qmw_row_file *file);

#endif /* QMW_CALIBRATE_ROW_FILE_H */
