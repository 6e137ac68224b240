/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Bytes that are read range by range: a file that stays open, or memory. A file is
 * not mapped: one that shrinks under a reader would kill the process. Reading checks
 * that the file is still the one that was opened (size and time of its last change).
 */
#ifndef QMW_SOURCE_H
#define QMW_SOURCE_H

#include <stdint.h>

#include <qmla/status.h>

#include "common/digest.h"

struct qmw_source;

/** Opens a regular file; logs the path. QMLA_ERR_NOT_FOUND, QMLA_ERR_PERMISSION, QMLA_ERR_FORMAT
 * (no regular file), QMLA_ERR_IO, QMLA_ERR_NO_MEMORY. */
qmla_status_t qmw_source_open(const char *path, struct qmw_source **source);

/** Over @p bytes, which the caller keeps; @p label stands for the path in messages. */
qmla_status_t qmw_source_wrap(const void *bytes, uint64_t length, const char *label,
			      struct qmw_source **source);
void qmw_source_close(struct qmw_source *source); /**< accepts NULL */

const char *qmw_source_path(const struct qmw_source *source);

/** Bytes there were on opening. */
uint64_t qmw_source_length(const struct qmw_source *source);

/** The bytes of a source over memory, NULL of a file. */
const uint8_t *qmw_source_bytes(const struct qmw_source *source);

/**
 * Copies @p length bytes from @p offset, all of them inside the length on opening. Any
 * thread; blocks. QMLA_ERR_CORRUPT (logged): the file has changed since; QMLA_ERR_IO.
 */
qmla_status_t qmw_source_read(const struct qmw_source *source, uint64_t offset, uint64_t length,
			      void *bytes);

/** SHA-256 of all bytes, a piece at a time. Errors as read. */
qmla_status_t qmw_source_digest(const struct qmw_source *source, uint8_t digest[QMC_SHA256_BYTES]);

#endif /* QMW_SOURCE_H */
