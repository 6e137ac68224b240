/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void qmw_notes_add(struct qmw_notes *notes, const char *format, ...)
{
	va_list arguments;
	char *line;
	int length;

	if (notes->count == QMW_NOTES_MAX)
		return;
	va_start(arguments, format);
	length = vasprintf(&line, format, arguments);
	va_end(arguments);
	if (length < 0)
		return;
	for (size_t i = 0; i < notes->count; i++) {
		if (strcmp(notes->lines[i], line) == 0) {
			free(line);
			return;
		}
	}
	notes->lines[notes->count++] = line;
}

void qmw_notes_clear(struct qmw_notes *notes)
{
	while (notes->count > 0)
		free(notes->lines[--notes->count]);
}
