/* SPDX-License-Identifier: Apache-2.0 */
/** @file Prompt texts of the worker tests. */
#ifndef WORKER_PROMPTS_H
#define WORKER_PROMPTS_H

#include <stdint.h>

struct prompt {
	uint8_t bytes[16384];
	uint32_t count;
};

/** tests/data/prompts/NAME; count 0 when it is not there. */
void prompt_read(struct prompt *prompt, const char *name);

/** @p bytes bytes of text that no other @p seed shares a block with. */
void prompt_make(struct prompt *prompt, uint32_t bytes, uint32_t seed);

#endif /* WORKER_PROMPTS_H */
