/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/cli/vocabulary.h"

static char directory[256], said[1024], problem[512];

/* What a check says on standard error goes to @said. */
static qmla_status_t check(uint32_t vocab, bool tokens)
{
	char path[300];
	int old = dup(STDERR_FILENO), file;
	qmla_status_t status;
	ssize_t got;

	snprintf(path, sizeof(path), "%s/said", directory);
	file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_true(old >= 0 && file >= 0);
	fflush(stderr);
	dup2(file, STDERR_FILENO);
	problem[0] = 0;
	status = qmw_vocabulary_check("qmla test", directory, vocab, tokens, problem,
				      sizeof(problem));
	fflush(stderr);
	dup2(old, STDERR_FILENO);
	got = pread(file, said, sizeof(said) - 1, 0);
	assert_true(got >= 0);
	said[got] = 0;
	close(old);
	close(file);
	unlink(path);
	return status;
}

static void put_tokenizer(char path[300])
{
	FILE *file;

	snprintf(path, 300, "%s/tokenizer.json", directory);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("{}", file);
	fclose(file);
}

static void test_bytes(void **state)
{
	char path[300];

	(void)state;
	assert_int_equal(check(256, true), QMLA_OK);
	assert_string_equal(said, "");
	put_tokenizer(path); /* one that gives bytes */
	assert_int_equal(check(256, true), QMLA_OK);
	assert_string_equal(said, "");
	unlink(path);
}

/* It may be bytes and a few marks: only its maker knows. */
static void test_warning(void **state)
{
	(void)state;
	assert_int_equal(check(320, true), QMLA_OK);
	assert_non_null(strstr(said, directory));
	assert_non_null(strstr(said, "320"));
	assert_non_null(strstr(said, "--tokens"));
	assert_int_equal(check(100, false), QMLA_OK);
	assert_non_null(strstr(said, "100"));
	assert_null(strstr(said, "--tokens"));
}

static void test_refused(void **state)
{
	char path[300];

	(void)state;
	put_tokenizer(path);
	assert_int_equal(check(129280, true), QMLA_ERR_UNSUPPORTED);
	assert_string_equal(said, "");
	assert_non_null(strstr(problem, "129280"));
	assert_non_null(strstr(problem, "tokenizer.json"));
	assert_non_null(strstr(problem, "--tokens"));
	/* Without another way to read a text: told, and done. */
	assert_int_equal(check(129280, false), QMLA_OK);
	assert_non_null(strstr(said, "129280"));
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_warning),
		cmocka_unit_test(test_refused),
	};
	const char *root = getenv("TMPDIR");
	int failed;

	snprintf(directory, sizeof(directory), "%s/qmla-vocabulary-XXXXXX", root ? root : "/tmp");
	if (!mkdtemp(directory))
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(directory);
	return failed;
}
