/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/text.h"

#define MARK "\xEF\xBF\xBD" /* U+FFFD */

static void expect_json(const char *bytes, size_t count, const char *expected)
{
	json_t *value = qmw_text_json(bytes, count);

	assert_non_null(value);
	assert_string_equal(json_string_value(value), expected);
	json_decref(value);
}

static void test_valid_text_is_kept(void **state)
{
	(void)state;
	expect_json("", 0, "");
	expect_json("plain", 5, "plain");
	expect_json("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82", 9,
		    "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82");
}

/* RFC 3629: bare and missing continuations, overlong forms, surrogates, past U+10FFFF. */
static void test_what_is_no_utf8_is_marked(void **state)
{
	(void)state;
	expect_json("a\x80z", 3, "a" MARK "z");
	expect_json("a\xC3", 2, "a" MARK);
	expect_json("\xE2\x82z", 3, MARK MARK "z");
	expect_json("\xC0\xAF", 2, MARK MARK);
	expect_json("\xE0\x80\xAF", 3, MARK MARK MARK);
	expect_json("\xED\xA0\x80", 3, MARK MARK MARK);
	expect_json("\xF4\x90\x80\x80", 4, MARK MARK MARK MARK);
	expect_json("\xFF\xFE", 2, MARK MARK);
}

static void test_appending_grows(void **state)
{
	struct qmw_text text = {0};

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		uint8_t byte = (uint8_t)i;

		assert_int_equal(qmw_text_append(&text, &byte, 1), QMLA_OK);
	}
	assert_int_equal(text.bytes, 1000);
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(text.data[i], (uint8_t)i);
	qmw_text_free(&text);
	assert_int_equal(text.bytes, 0);
}

static void test_files(void **state)
{
	char path[] = "/tmp/qmla-text-XXXXXX";
	int fd = mkstemp(path);
	struct qmw_text text = {0};

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "0123456789", 10), 10);
	close(fd);
	assert_int_equal(qmw_text_read(&text, "test", path, 10), QMLA_OK);
	assert_int_equal(text.bytes, 10);
	assert_memory_equal(text.data, "0123456789", 10);
	qmw_text_free(&text);
	assert_int_equal(qmw_text_read(&text, "test", path, 9), QMLA_ERR_TOO_LARGE);
	qmw_text_free(&text);
	unlink(path);
	assert_int_equal(qmw_text_read(&text, "test", path, 10), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmw_text_read(&text, "test", "/tmp", 10), QMLA_ERR_IO);
	qmw_text_free(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_valid_text_is_kept),
		cmocka_unit_test(test_what_is_no_utf8_is_marked),
		cmocka_unit_test(test_appending_grows),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
