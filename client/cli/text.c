/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

qmla_status_t qmw_text_append(struct qmw_text *text, const void *data, size_t bytes)
{
	if (bytes > text->room - text->bytes) {
		size_t room = 2 * (text->bytes + bytes) + 64;
		uint8_t *larger = realloc(text->data, room);

		if (!larger)
			return QMLA_ERR_NO_MEMORY;
		text->data = larger;
		text->room = room;
	}
	if (bytes > 0)
		memcpy(text->data + text->bytes, data, bytes);
	text->bytes += bytes;
	return QMLA_OK;
}

void qmw_text_free(struct qmw_text *text)
{
	free(text->data);
	memset(text, 0, sizeof(*text));
}

static qmla_status_t read_all(struct qmw_text *text, FILE *file, size_t limit)
{
	uint8_t piece[16384];
	size_t got;
	qmla_status_t status = QMLA_OK;

	while (status == QMLA_OK && (got = fread(piece, 1, sizeof(piece), file)) > 0) {
		if (text->bytes + got > limit)
			return QMLA_ERR_TOO_LARGE;
		status = qmw_text_append(text, piece, got);
	}
	return status == QMLA_OK && ferror(file) ? QMLA_ERR_IO : status;
}

qmla_status_t qmw_text_read(struct qmw_text *text, const char *program, const char *path,
			    size_t limit)
{
	bool standard = strcmp(path, "-") == 0;
	FILE *file = standard ? stdin : fopen(path, "rb");
	qmla_status_t status;

	if (!file) {
		fprintf(stderr, "%s: cannot open %s: %s\n", program, path, strerror(errno));
		return QMLA_ERR_NOT_FOUND;
	}
	status = read_all(text, file, limit);
	if (status == QMLA_ERR_TOO_LARGE)
		fprintf(stderr, "%s: %s is larger than %zu bytes\n", program, path, limit);
	else if (status != QMLA_OK)
		fprintf(stderr, "%s: cannot read %s: %s\n", program, path,
			status == QMLA_ERR_IO ? strerror(errno) : "no memory");
	if (!standard)
		fclose(file);
	return status;
}

static bool is_continuation(uint8_t byte)
{
	return (byte & 0xC0) == 0x80;
}

/* Length of the valid UTF-8 character at the start of @p s, 0: there is none (RFC 3629). */
static size_t character(const uint8_t *s, size_t bytes)
{
	size_t length = s[0] < 0x80   ? 1
			: s[0] < 0xC2 ? 0
			: s[0] < 0xE0 ? 2
			: s[0] < 0xF0 ? 3
			: s[0] < 0xF5 ? 4
				      : 0;

	if (length == 0 || length > bytes)
		return 0;
	for (size_t i = 1; i < length; i++) {
		if (!is_continuation(s[i]))
			return 0;
	}
	if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
	    (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
		return 0;
	return length;
}

json_t *qmw_text_json(const void *data, size_t bytes)
{
	const uint8_t *s = data;
	struct qmw_text clean = {0};
	json_t *value = NULL;
	qmla_status_t status = QMLA_OK;

	for (size_t i = 0; i < bytes && status == QMLA_OK;) {
		size_t length = character(s + i, bytes - i);

		status = length > 0 ? qmw_text_append(&clean, s + i, length)
				    : qmw_text_append(&clean, "\xEF\xBF\xBD", 3);
		i += length > 0 ? length : 1;
	}
	if (status == QMLA_OK)
		value = json_stringn(clean.data ? (const char *)clean.data : "", clean.bytes);
	qmw_text_free(&clean);
	return value;
}
