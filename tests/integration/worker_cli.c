/* SPDX-License-Identifier: Apache-2.0 */
/* qmla generate, eval and model as a person or a program calls them: texts and exit statuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/log.h"
#include "worker_cluster.h"

#define MODEL "'" QMLA_TEST_DATA "/mla-s'"

static struct cluster cluster;
static struct process *decode;

struct output {
	int status;
	char out[65536], err[8192];
};

static void read_file(const char *path, char *text, size_t size)
{
	FILE *file = fopen(path, "r");

	text[0] = '\0';
	if (file) {
		text[fread(text, 1, size - 1, file)] = '\0';
		fclose(file);
	}
}

/* Runs "qmla ARGUMENTS"; standard output goes to @p to, NULL: into the result. */
static struct output *qmla_to(const char *to, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static struct output *qmla_to(const char *to, const char *format, ...)
{
	static struct output output;
	char arguments[1024], out[300], err[300], command[3000];
	va_list list;
	int status;

	va_start(list, format);
	vsnprintf(arguments, sizeof(arguments), format, list);
	va_end(list);
	snprintf(out, sizeof(out), "%s/out", cluster.folder);
	snprintf(err, sizeof(err), "%s/err", cluster.folder);
	snprintf(command, sizeof(command), "'%s/bin/qmla' %s >'%s' 2>'%s'", QMLA_BINARY_DIR,
		 arguments, to ? to : out, err);
	status = system(command);
	output.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	read_file(out, output.out, sizeof(output.out));
	read_file(err, output.err, sizeof(output.err));
	unlink(out);
	return &output;
}
#define qmla(...) qmla_to(NULL, __VA_ARGS__)

static void expect(const struct output *output, int status, const char *err)
{
	if (output->status != status || !strstr(output->err, err))
		print_message("status %d, '%s'\n", output->status, output->err);
	assert_int_equal(output->status, status);
	assert_non_null(strstr(output->err, err));
}

/* One object, with the error's text and the status' name. */
static void expect_object(const struct output *output, const char *error, const char *status)
{
	json_t *object = json_loads(output->out, 0, NULL);

	if (!object)
		print_message("no JSON: '%s'\n", output->out);
	assert_non_null(object);
	assert_non_null(strstr(json_string_value(json_object_get(object, "error")), error));
	assert_string_equal(json_string_value(json_object_get(object, "status")), status);
	json_decref(object);
}

static int start(void **state)
{
	(void)state;
	decode = cluster_worker(&cluster, "decode", NULL, NULL, NULL);
	return decode ? 0 : -1;
}

static void test_generate_answers(void **state)
{
	struct output *output =
		qmla("generate -d %s -p hello -n 8 --ignore-eos --json", decode->address);
	json_t *object;

	(void)state;
	expect(output, 0, "");
	object = json_loads(output->out, 0, NULL);
	assert_non_null(object);
	assert_int_equal(json_array_size(json_object_get(object, "tokens")), 8);
	assert_null(json_object_get(object, "error"));
	json_decref(object);
}

static void test_generate_without_a_worker(void **state)
{
	struct output *output;

	(void)state;
	expect(qmla("generate -d 127.0.0.1:1 -p hello"), 3, "127.0.0.1:1");
	output = qmla("generate -d 127.0.0.1:1 -p hello --json");
	expect(output, 3, "127.0.0.1:1");
	expect_object(output, "127.0.0.1:1", "unavailable");
}

static void test_generate_used_wrongly(void **state)
{
	struct output *output = qmla("generate -d a:b:c -p hello --json");

	(void)state;
	expect(output, 2, "--decode: 'a:b:c'");
	expect_object(output, "a:b:c", "invalid_argument");
	expect(qmla("generate -d :0 -p hello"), 2, "host:port");
	expect(qmla("generate -d %s", decode->address), 2, "give one prompt");
	expect(qmla("generate -p hello --tls-ca x.pem"), 2, "--tls-key");
	expect(qmla("generate -p hello --tls-ca /no/ca --tls-certificate /no/c --tls-key /no/k"), 1,
	       "/no/ca");
}

static void test_generate_that_the_worker_refuses(void **state)
{
	struct output *output = qmla("generate -d %s -p hello -n 4000000 --json", decode->address);

	(void)state;
	expect(output, 1, "32768 positions");
	expect_object(output, "shorten one of them", "too_large");
}

static void test_a_full_disk_behind_standard_output(void **state)
{
	(void)state;
	if (access("/dev/full", W_OK) != 0)
		skip();
	expect(qmla_to("/dev/full", "generate -d %s -p hello -n 8", decode->address), 1,
	       "standard output: No space left on device");
	expect(qmla_to("/dev/full", "generate -d %s -p hello -n 8 --json", decode->address), 1,
	       "standard output: No space left on device");
}

static void test_eval_of_a_short_text(void **state)
{
	char path[300];
	struct output *output;
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/short.txt", cluster.folder);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("a text of a few words\n", file);
	fclose(file);
	output = qmla("eval --model " MODEL " --text %s --json", path);
	expect(output, 1, "smaller --length");
	expect_object(output, "22 bytes", "invalid_argument");
	output = qmla("eval --model " MODEL " --text %s --length 20 --json", path);
	expect(output, 0, "");
	assert_non_null(strstr(output->out, "bits_per_byte"));
	output = qmla("eval --model " MODEL " --text /no/such/text --json");
	expect(output, 1, "No such file");
	expect_object(output, "/no/such/text", "not_found");
	output = qmla("eval --model /no/such/model --text %s --length 20 --json", path);
	expect(output, 1, "/no/such/model");
	expect_object(output, "", "not_found");
}

static void identity_of(const char *flags, char identity[65])
{
	struct output *output = qmla("model inspect " MODEL " --json %s", flags);
	json_t *object;

	expect(output, 0, "");
	object = json_loads(output->out, 0, NULL);
	assert_non_null(object);
	snprintf(identity, 65, "%s", json_string_value(json_object_get(object, "identity")));
	json_decref(object);
}

/* Without the constants blocks are others, so they go by another identity. */
static void test_ignored_calibration_is_another_identity(void **state)
{
	char with[65], without[65];
	struct output *output;

	(void)state;
	identity_of("", with);
	identity_of("--ignore-calibration", without);
	assert_int_equal(strlen(with), 64);
	assert_string_not_equal(with, without);
	output = qmla("model inspect /no/such/model --json");
	expect(output, 1, "/no/such/model");
	expect_object(output, "/no/such/model", "not_found");
	assert_int_equal(qmla("eval --model " MODEL " --ignore-calibration --length 64 -n 1 --text "
			      "'" QMLA_TEST_DATA "/prompts/prompt_a.txt'")
				 ->status,
			 0);
}

static void test_the_worker_ends_cleanly(void **state)
{
	(void)state;
	assert_int_equal(process_stop(decode), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_generate_answers),
		cmocka_unit_test(test_generate_without_a_worker),
		cmocka_unit_test(test_generate_used_wrongly),
		cmocka_unit_test(test_generate_that_the_worker_refuses),
		cmocka_unit_test(test_a_full_disk_behind_standard_output),
		cmocka_unit_test(test_eval_of_a_short_text),
		cmocka_unit_test(test_ignored_calibration_is_another_identity),
		cmocka_unit_test(test_the_worker_ends_cleanly),
	};
	int failed;

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (!cluster_open(&cluster))
		return 77;
	failed = cmocka_run_group_tests(tests, start, NULL);
	cluster_close(&cluster, failed != 0);
	return failed;
}
