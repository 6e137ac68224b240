/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/vocabulary.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define BYTES 256u
#define REMEDY                                                                                     \
	"write the text's token ids, 32 bits each, little-endian, to a file and give --tokens"

/* The tokenizer's file beside the weights, NULL: none. */
static const char *find_tokenizer(const char *model)
{
	static const char *const names[] = {"tokenizer.json", "tokenizer.model", "tiktoken.model",
					    "spiece.model", "vocab.json"};
	char path[4096];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		int length = snprintf(path, sizeof(path), "%s/%s", model, names[i]);

		if (length > 0 && (size_t)length < sizeof(path) && access(path, F_OK) == 0)
			return names[i];
	}
	return NULL;
}

qmla_status_t qmw_vocabulary_check(const char *program, const char *model, uint32_t vocab,
				   bool tokens, char *problem, size_t size)
{
	const char *tokenizer;

	if (vocab == BYTES)
		return QMLA_OK;
	tokenizer = find_tokenizer(model);
	if (tokenizer && tokens) {
		snprintf(problem, size,
			 "%s has a vocabulary of %" PRIu32 " tokens, which %s makes: the bytes of "
			 "--text are none of them; " REMEDY,
			 model, vocab, tokenizer);
		return QMLA_ERR_UNSUPPORTED;
	}
	fprintf(stderr,
		"%s: warning: %s has a vocabulary of %" PRIu32 " tokens, and each byte of the text "
		"is taken for the token of its number: %s\n",
		program, model, vocab,
		tokens ? "if its tokens are not bytes, " REMEDY
		       : "if its tokens are not bytes, the figures mean nothing");
	return QMLA_OK;
}
