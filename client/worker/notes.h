/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What went wrong on the way of one request and was worked around: a few lines
 * for the person who asked. One thread at a time.
 */
#ifndef QMW_NOTES_H
#define QMW_NOTES_H

#include <stddef.h>

#define QMW_NOTES_MAX 8

/** Caller's storage, zero-initialised. */
struct qmw_notes {
	char *lines[QMW_NOTES_MAX];
	size_t count;
};

/** Adds a line; one that is there already, or one too many, is left out. */
void qmw_notes_add(struct qmw_notes *notes, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/** Frees the lines; the notes are empty again. */
void qmw_notes_clear(struct qmw_notes *notes);

#endif /* QMW_NOTES_H */
