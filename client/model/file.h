/* SPDX-License-Identifier: Apache-2.0 */
/** @file Reads a whole file into memory. */
#ifndef QMW_FILE_H
#define QMW_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include <qmla/status.h>

/**
 * Reads @p path into malloc'ed @p bytes (one zero byte is added behind
 * @p length). Logs the path: QMLA_ERR_NOT_FOUND, QMLA_ERR_PERMISSION,
 * QMLA_ERR_TOO_LARGE (over @p limit), QMLA_ERR_CORRUPT (it shrank while being
 * read), QMLA_ERR_FORMAT (no regular file), QMLA_ERR_IO, QMLA_ERR_NO_MEMORY. Blocks.
 */
qmla_status_t qmw_file_read(const char *path, size_t limit, void **bytes, size_t *length);

/** True when @p path names something. */
bool qmw_file_exists(const char *path);

/** malloc'ed "directory/name", NULL without memory. */
char *qmw_path_join(const char *directory, const char *name);

#endif /* QMW_FILE_H */
