/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "client/worker/notes.h"
#include "client/worker/prompt.h"
#include "client/worker/request.h"

static const struct qmw_model_info bytes_model = {.vocab = 256, .max_position = 100};
static const struct qmw_model_info words_model = {.vocab = 129280, .max_position = 100};

static Qmla__V1__GenerateRequest request_for(const char *text, uint32_t max_tokens)
{
	Qmla__V1__GenerateRequest request;

	qmla__v1__generate_request__init(&request);
	request.prompt.data = (uint8_t *)(uintptr_t)text;
	request.prompt.len = strlen(text);
	request.max_tokens = max_tokens;
	return request;
}

static qmla_status_t tokens_of(const struct qmw_model_info *info,
			       const Qmla__V1__GenerateRequest *request, uint32_t **tokens,
			       uint32_t *count)
{
	struct qmw_detail detail = {.text = ""};
	qmla_status_t status = qmw_prompt_tokens(info, request, tokens, count, &detail);

	assert_int_equal(status != QMLA_OK, detail.text[0] != '\0');
	return status;
}

static void test_bytes_are_tokens(void **state)
{
	Qmla__V1__GenerateRequest request = request_for("a\xFFz", 1);
	uint32_t *tokens, count;

	(void)state;
	assert_int_equal(tokens_of(&bytes_model, &request, &tokens, &count), QMLA_OK);
	assert_int_equal(count, 3);
	assert_int_equal(tokens[0], 'a');
	assert_int_equal(tokens[1], 255);
	assert_int_equal(tokens[2], 'z');
	free(tokens);
}

static void test_a_larger_vocabulary_wants_tokens(void **state)
{
	Qmla__V1__GenerateRequest request = request_for("text", 1);
	uint32_t given[] = {129279, 0};
	uint32_t *tokens, count;

	(void)state;
	assert_int_equal(tokens_of(&words_model, &request, &tokens, &count), QMLA_ERR_UNSUPPORTED);
	request = request_for("", 1);
	request.tokens = given;
	request.n_tokens = 2;
	assert_int_equal(tokens_of(&words_model, &request, &tokens, &count), QMLA_OK);
	assert_int_equal(count, 2);
	assert_int_equal(tokens[0], 129279);
	free(tokens);
	given[1] = 129280;
	assert_int_equal(tokens_of(&words_model, &request, &tokens, &count),
			 QMLA_ERR_INVALID_ARGUMENT);
}

static void test_positions_are_the_limit(void **state)
{
	char text[102];
	Qmla__V1__GenerateRequest request;
	uint32_t *tokens, count;

	(void)state;
	memset(text, 'x', sizeof(text));
	text[99] = '\0';
	request = request_for(text, 1);
	assert_int_equal(tokens_of(&bytes_model, &request, &tokens, &count), QMLA_OK);
	free(tokens);
	request.max_tokens = 2;
	assert_int_equal(tokens_of(&bytes_model, &request, &tokens, &count), QMLA_ERR_TOO_LARGE);
	request.max_tokens = UINT32_MAX; /* no wrapping around */
	assert_int_equal(tokens_of(&bytes_model, &request, &tokens, &count), QMLA_ERR_TOO_LARGE);
	text[99] = 'x';
	text[101] = '\0';
	request = request_for(text, 1);
	assert_int_equal(tokens_of(&bytes_model, &request, &tokens, &count), QMLA_ERR_TOO_LARGE);
}

static void test_block_limit_counts_what_is_fed(void **state)
{
	(void)state;
	/* The last token that is sampled is not fed back. */
	assert_int_equal(qmw_request_block_limit(64, 0), 1);
	assert_int_equal(qmw_request_block_limit(63, 1), 0);
	assert_int_equal(qmw_request_block_limit(63, 2), 1);
	assert_int_equal(qmw_request_block_limit(64, 64), 1);
	assert_int_equal(qmw_request_block_limit(64, 65), 2);
}

static void test_notes_are_few_and_not_repeated(void **state)
{
	struct qmw_notes notes = {0};

	(void)state;
	qmw_notes_add(&notes, "node %s: %d", "a", 1);
	qmw_notes_add(&notes, "node %s: %d", "a", 1);
	assert_int_equal(notes.count, 1);
	assert_string_equal(notes.lines[0], "node a: 1");
	for (int i = 0; i < 100; i++)
		qmw_notes_add(&notes, "note %d", i);
	assert_int_equal(notes.count, QMW_NOTES_MAX);
	qmw_notes_clear(&notes);
	assert_int_equal(notes.count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_are_tokens),
		cmocka_unit_test(test_a_larger_vocabulary_wants_tokens),
		cmocka_unit_test(test_positions_are_the_limit),
		cmocka_unit_test(test_block_limit_counts_what_is_fed),
		cmocka_unit_test(test_notes_are_few_and_not_repeated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
