/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/corpus.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Piece i of total is held out when the running share of held-out ones steps up there. */
static bool is_held_out(uint64_t i, uint64_t held_out, uint64_t total)
{
	return (i + 1) * held_out / total > i * held_out / total;
}

qmla_status_t qmw_corpus_init(const uint32_t *tokens, uint64_t count, uint32_t length,
			      uint32_t train, uint32_t held_out, struct qmw_corpus *corpus)
{
	uint64_t available = length > 0 ? count / length : 0;
	uint64_t total = (uint64_t)train + held_out, kept = held_out;
	struct qmw_corpus self = {.tokens = tokens, .length = length};
	uint32_t learned = 0, tested = 0;

	if (available < 2 || train == 0 || held_out == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (available < total) {
		kept = available * held_out / total;
		kept = kept > 0 ? kept : 1;
		kept = kept < available ? kept : available - 1;
		total = available;
	}
	self.held_out = (uint32_t)kept;
	self.train = (uint32_t)(total - kept);
	self.starts = malloc(total * sizeof(*self.starts));
	if (!self.starts)
		return QMLA_ERR_NO_MEMORY;
	for (uint64_t i = 0; i < total; i++) {
		uint64_t start = i * available / total * length;

		if (is_held_out(i, kept, total))
			self.starts[self.train + tested++] = start;
		else
			self.starts[learned++] = start;
	}
	*corpus = self;
	return QMLA_OK;
}

void qmw_corpus_fini(struct qmw_corpus *corpus)
{
	free(corpus->starts);
	memset(corpus, 0, sizeof(*corpus));
}

const uint32_t *qmw_corpus_sequence(const struct qmw_corpus *corpus, uint32_t index)
{
	return corpus->tokens + corpus->starts[index];
}
