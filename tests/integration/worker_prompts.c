/* SPDX-License-Identifier: Apache-2.0 */
#include "worker_prompts.h"

#include <stdio.h>
#include <string.h>

void prompt_read(struct prompt *prompt, const char *name)
{
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/prompts/%s", QMLA_TEST_DATA, name);
	file = fopen(path, "rb");
	prompt->count = 0;
	if (!file)
		return;
	prompt->count = (uint32_t)fread(prompt->bytes, 1, sizeof(prompt->bytes), file);
	fclose(file);
}

void prompt_make(struct prompt *prompt, uint32_t bytes, uint32_t seed)
{
	static const char *const words[] = {
		"cache ", "page ", "of ",    "the ", "lease ", "reads ",  "node ", "and ",
		"key ",   "is ",   "block ", "a ",   "to ",    "writes ", "when ", "it "};

	prompt->count = 0;
	prompt->count += (uint32_t)sprintf((char *)prompt->bytes, "Text %u. ", seed);
	while (prompt->count < bytes) {
		const char *word = words[(seed = seed * 1664525u + 1013904223u) >> 28];

		for (; *word && prompt->count < bytes; word++)
			prompt->bytes[prompt->count++] = (uint8_t)*word;
	}
}
