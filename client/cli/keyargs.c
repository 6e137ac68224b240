/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/keyargs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/text.h"
#include "common/digest.h"

#define FILE_LIMIT ((size_t)256 << 20)

bool qmw_keyargs_from_file(const struct qmw_keyargs *args)
{
	return args->tokens || args->text;
}

static qmla_status_t from_operands(struct qmw_keyargs *args, const char *program, int count,
				   char **operands)
{
	args->keys = calloc((size_t)count, sizeof(*args->keys));
	if (!args->keys)
		return QMLA_ERR_NO_MEMORY;
	for (int i = 0; i < count; i++) {
		if (qmc_hex_decode(operands[i], args->keys[i].bytes, sizeof(args->keys[i].bytes)) !=
		    QMLA_OK) {
			fprintf(stderr, "%s: '%s' is not a key: 32 hex digits\n", program,
				operands[i]);
			return QMLA_ERR_INVALID_ARGUMENT;
		}
	}
	args->count = (size_t)count;
	return QMLA_OK;
}

/* Token ids of a text file; @p text is NUL-terminated. */
static qmla_status_t parse_tokens(const char *text, const char *program, const char *path,
				  uint32_t **tokens, size_t *count)
{
	size_t room = strlen(text) / 2 + 1, used = 0;
	uint32_t *list = calloc(room, sizeof(*list));

	if (!list)
		return QMLA_ERR_NO_MEMORY;
	for (;;) {
		unsigned long value;
		char *end;

		text += strspn(text, " \t\r\n,");
		if (!*text)
			break;
		errno = 0;
		value = strtoul(text, &end, 10);
		if (*text < '0' || *text > '9' || errno || value > UINT32_MAX ||
		    (*end && !strchr(" \t\r\n,", *end))) {
			fprintf(stderr, "%s: %s: '%.20s' is not a token id\n", program, path, text);
			free(list);
			return QMLA_ERR_FORMAT;
		}
		list[used++] = (uint32_t)value;
		text = end;
	}
	*tokens = list;
	*count = used;
	return QMLA_OK;
}

static qmla_status_t bytes_as_tokens(const struct qmw_text *text, uint32_t **tokens, size_t *count)
{
	uint32_t *list = calloc(text->bytes + 1, sizeof(*list));

	if (!list)
		return QMLA_ERR_NO_MEMORY;
	for (size_t i = 0; i < text->bytes; i++)
		list[i] = text->data[i];
	*tokens = list;
	*count = text->bytes;
	return QMLA_OK;
}

static qmla_status_t read_tokens(const struct qmw_keyargs *args, const char *program,
				 uint32_t **tokens, size_t *count)
{
	const char *path = args->tokens ? args->tokens : args->text;
	struct qmw_text text = {0};
	qmla_status_t status = qmw_text_read(&text, program, path, FILE_LIMIT);

	if (status == QMLA_OK && args->text)
		status = bytes_as_tokens(&text, tokens, count);
	else if (status == QMLA_OK)
		status = qmw_text_append(&text, "", 1);
	if (status == QMLA_OK && args->tokens)
		status = parse_tokens((const char *)text.data, program, path, tokens, count);
	qmw_text_free(&text);
	return status;
}

static qmla_status_t from_file(struct qmw_keyargs *args, const char *program,
			       const qmla_identity_t *identity)
{
	uint32_t *tokens = NULL;
	size_t count = 0;
	qmla_status_t status = read_tokens(args, program, &tokens, &count);

	if (status != QMLA_OK)
		return status;
	if (count < QMLA_BLOCK_TOKENS)
		fprintf(stderr, "%s: %zu tokens are less than a block of %d: no keys\n", program,
			count, QMLA_BLOCK_TOKENS);
	args->count = count / QMLA_BLOCK_TOKENS;
	args->chain = true;
	args->keys = calloc(args->count + 1, sizeof(*args->keys));
	status = args->keys
			 ? qmla_keys_compute(identity, args->name_space, tokens, count, args->keys)
			 : QMLA_ERR_NO_MEMORY;
	free(tokens);
	return status;
}

qmla_status_t qmw_keyargs_resolve(struct qmw_keyargs *args, const char *program,
				  const qmla_identity_t *identity, int count, char **operands)
{
	int sources = (count > 0) + (args->tokens != NULL) + (args->text != NULL);

	if (sources != 1) {
		fprintf(stderr, "%s: give keys, or --tokens FILE, or --text FILE%s\n", program,
			sources ? ", one of them" : "");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (count > 0)
		return from_operands(args, program, count, operands);
	return from_file(args, program, identity);
}

void qmw_keyargs_release(struct qmw_keyargs *args)
{
	free(args->keys);
	args->keys = NULL;
	args->count = 0;
}
