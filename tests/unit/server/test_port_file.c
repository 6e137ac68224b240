/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_first.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/port_file.h"

static const struct qms_port_file_values values = {"n1", 0xabc, 11, 22, 33};
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
	struct qms_port_file *file;
	char path[128], text[256] = "", expected[256];
	FILE *stream;

	(void)state;
	in_folder("ports", path);
	assert_int_equal(qms_port_file_create(path, &file), QMLA_OK);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(qms_port_file_publish(file, &values), QMLA_OK);
	stream = fopen(path, "r");
	assert_non_null(stream);
	assert_true(fread(text, 1, sizeof(text) - 1, stream) > 0);
	fclose(stream);
	snprintf(expected, sizeof(expected),
		 "11\ngrpc=11\ndata=22\nhttp=33\npid=%ld\nnode_id=n1\nincarnation="
		 "0000000000000abc\n",
		 (long)getpid());
	assert_string_equal(text, expected);
	qms_port_file_destroy(file);
	assert_int_equal(access(path, F_OK), -1);
	qms_port_file_destroy(NULL);
}

static void a_file_never_published_leaves_nothing(void **state)
{
	struct qms_port_file *file;
	char path[128];

	(void)state;
	in_folder("ports", path);
	assert_int_equal(qms_port_file_create(path, &file), QMLA_OK);
	qms_port_file_destroy(file);
}

static void a_place_that_cannot_be_written_is_an_error_at_once(void **state)
{
	struct qms_port_file *file = (struct qms_port_file *)state;
	char path[128];

	in_folder("missing/ports", path);
	assert_int_not_equal(qms_port_file_create(path, &file), QMLA_OK);
	assert_int_not_equal(qms_port_file_create("/proc/qmla-ports", &file), QMLA_OK);
	assert_ptr_equal(file, state);
}

/* A full disk: the values cannot be written, and that is said. */
static void a_full_disk_is_an_error(void **state)
{
	struct qms_port_file *file;

	(void)state;
	if (access("/dev/full", W_OK) != 0)
		skip();
	assert_int_not_equal(qms_port_file_create("/dev/full/ports", &file), QMLA_OK);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(it_appears_whole_and_goes_again),
		T(a_file_never_published_leaves_nothing),
		T(a_place_that_cannot_be_written_is_an_error_at_once),
		T(a_full_disk_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
