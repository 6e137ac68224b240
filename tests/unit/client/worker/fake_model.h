/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Stands behind client/model/model.h and the key function of libqmla in unit
 * tests. Its next token is a hash of every token so far, so a wrong token, a
 * missing one or one fed twice changes all that follow.
 */
#ifndef FAKE_MODEL_H
#define FAKE_MODEL_H

#include <stdint.h>

#include "client/model/model.h"

#define FAKE_VOCAB 64u

struct fake_call {
	uint32_t items, tokens;
	uint32_t counts[16];
};

struct fake_model_control {
	uint32_t delay_us; /**< of each forward call */
	uint32_t poison;   /**< a token that makes the call fail; UINT32_MAX: none */
	int64_t eos;
	uint32_t call_count; /**< read after the scheduler has ended */
	struct fake_call calls[4096];
};
extern struct fake_model_control fake;

void fake_reset(void);

/** The model handed to the code under test. */
const struct qmw_model *fake_model(void);

/** What the fake generates after @p tokens: the expected answer, straight from the definition. */
uint32_t fake_next(const uint32_t *tokens, uint32_t count);

/** Tokens that went into keys so far, in all. */
uint64_t fake_tokens_hashed(void);

#endif /* FAKE_MODEL_H */
