/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/port_file.h"

static const struct qmc_port_file_values values = {
	.node_id = "n1", .incarnation = 0xabc, .grpc = 11, .data = 22, .http = 33};
static char folder[64];

static int setup(void **state)
{
	(void)state;
	strcpy(folder, "/tmp/qmla-ports-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

/* Also proves that nothing was left lying about. */
static int teardown(void **state)
{
	(void)state;
	return rmdir(folder);
}

static void in_folder(const char *name, char path[128])
{
	snprintf(path, 128, "%s/%s", folder, name);
}

static void it_appears_whole_and_goes_again(void **state)
{
	struct qmc_port_file *file;
	char path[128], text[256] = "", expected[256];
	FILE *stream;

	(void)state;
	in_folder("ports", path);
	assert_int_equal(qmc_port_file_create(path, &file), QMLA_OK);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(qmc_port_file_publish(file, &values), QMLA_OK);
	stream = fopen(path, "r");
	assert_non_null(stream);
	assert_true(fread(text, 1, sizeof(text) - 1, stream) > 0);
	fclose(stream);
	snprintf(expected, sizeof(expected),
		 "11\ngrpc=11\ndata=22\nhttp=33\npid=%ld\nnode_id=n1\nincarnation="
		 "0000000000000abc\n",
		 (long)getpid());
	assert_string_equal(text, expected);
	qmc_port_file_destroy(file);
	assert_int_equal(access(path, F_OK), -1);
	qmc_port_file_destroy(NULL);
}

static void a_file_never_published_leaves_nothing(void **state)
{
	struct qmc_port_file *file;
	char path[128];

	(void)state;
	in_folder("ports", path);
	assert_int_equal(qmc_port_file_create(path, &file), QMLA_OK);
	qmc_port_file_destroy(file);
}

static void a_place_that_cannot_be_written_is_an_error_at_once(void **state)
{
	struct qmc_port_file *file = (struct qmc_port_file *)state;
	char path[128];

	in_folder("missing/ports", path);
	assert_int_not_equal(qmc_port_file_create(path, &file), QMLA_OK);
	assert_int_not_equal(qmc_port_file_create("/proc/qmla-ports", &file), QMLA_OK);
	assert_ptr_equal(file, state);
}

static void write_text(const char *path, const char *text)
{
	FILE *stream = fopen(path, "w");

	assert_non_null(stream);
	fputs(text, stream);
	fclose(stream);
}

/* What a second server published is not the first one's to remove, nor what one found there. */
static void only_the_own_file_is_removed(void **state)
{
	struct qmc_port_file *first, *second, *failed;
	char path[128];

	(void)state;
	in_folder("ports", path);
	assert_int_equal(qmc_port_file_create(path, &first), QMLA_OK);
	assert_int_equal(qmc_port_file_create(path, &second), QMLA_OK);
	assert_int_equal(qmc_port_file_create(path, &failed), QMLA_OK);
	assert_int_equal(qmc_port_file_publish(first, &values), QMLA_OK);
	qmc_port_file_destroy(failed);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(qmc_port_file_publish(second, &values), QMLA_OK);
	qmc_port_file_destroy(first);
	assert_int_equal(access(path, F_OK), 0);
	qmc_port_file_remove(second);
	assert_int_equal(access(path, F_OK), -1);
	write_text(path, "somebody's");
	qmc_port_file_destroy(second);
	assert_int_equal(unlink(path), 0);
}

static void a_server_without_id_and_data_port_tells_neither(void **state)
{
	const struct qmc_port_file_values plain = {.grpc = 7100};
	struct qmc_port_file *file;
	char path[128], text[256] = "", expected[256];
	FILE *stream;

	(void)state;
	in_folder("ports", path);
	assert_int_equal(qmc_port_file_create(path, &file), QMLA_OK);
	assert_int_equal(qmc_port_file_publish(file, &plain), QMLA_OK);
	stream = fopen(path, "r");
	assert_non_null(stream);
	assert_true(fread(text, 1, sizeof(text) - 1, stream) > 0);
	fclose(stream);
	snprintf(expected, sizeof(expected), "7100\ngrpc=7100\npid=%ld\n", (long)getpid());
	assert_string_equal(text, expected);
	qmc_port_file_destroy(file);
}

/* A full disk: the values cannot be written, and that is said. */
static void a_full_disk_is_an_error(void **state)
{
	struct qmc_port_file *file;

	(void)state;
	if (access("/dev/full", W_OK) != 0)
		skip();
	assert_int_not_equal(qmc_port_file_create("/dev/full/ports", &file), QMLA_OK);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(it_appears_whole_and_goes_again),
		T(a_file_never_published_leaves_nothing),
		T(a_place_that_cannot_be_written_is_an_error_at_once),
		T(only_the_own_file_is_removed),
		T(a_server_without_id_and_data_port_tells_neither),
		T(a_full_disk_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
