/* SPDX-License-Identifier: Apache-2.0 */
/** @file A growing piece of bytes, files read into it, and bytes as JSON text. One thread. */
#ifndef QMW_TEXT_H
#define QMW_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

/** Caller's storage, zero-initialised; freed with qmw_text_free. */
struct qmw_text {
	uint8_t *data;
	size_t bytes, room;
};

/** Appends @p bytes bytes. QMLA_ERR_NO_MEMORY leaves the text as it was. */
qmla_status_t qmw_text_append(struct qmw_text *text, const void *data, size_t bytes);

/**
 * Appends the whole file at @p path, "-" for standard input. Prints what is wrong
 * with it under the name of @p program: QMLA_ERR_NOT_FOUND, QMLA_ERR_IO,
 * QMLA_ERR_TOO_LARGE (over @p limit bytes), QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmw_text_read(struct qmw_text *text, const char *program, const char *path,
			    size_t limit);

/** Frees the bytes; the text is empty again. */
void qmw_text_free(struct qmw_text *text);

/** A JSON string of @p bytes bytes; what is no UTF-8 becomes U+FFFD. */
json_t *qmw_text_json(const void *data, size_t bytes);

#endif /* QMW_TEXT_H */
