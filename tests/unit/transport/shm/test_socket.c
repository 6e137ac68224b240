/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "owner.h"
#include "transport/shm/socket.h"

static unsigned entries(const char *directory)
{
	DIR *stream = opendir(directory);
	const struct dirent *entry;
	unsigned count = 0;

	assert_non_null(stream);
	while ((entry = readdir(stream)) != NULL)
		count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	closedir(stream);
	return count;
}

static void stale_sockets_go_and_others_stay(void **state)
{
	char directory[] = "/tmp/qmt-test-XXXXXX", foreign[64], fresh[64];
	char dead[QMT_ADDRESS_TEXT_MAX], live[QMT_ADDRESS_TEXT_MAX], mine[QMT_ADDRESS_TEXT_MAX];
	int dead_fd, live_fd, mine_fd, fd;
	FILE *file;

	(void)state;
	assert_non_null(mkdtemp(directory));
	snprintf(foreign, sizeof(foreign), "%s/other.sock", directory);
	snprintf(fresh, sizeof(fresh), "%s/qmt-0123456789abcdef.sock", directory);
	assert_int_equal(qmt_shm_socket_listen(directory, &dead_fd, dead), QMLA_OK);
	assert_int_equal(qmt_shm_socket_listen(directory, &live_fd, live), QMLA_OK);
	close(dead_fd); /* what is left of a killed server */
	file = fopen(foreign, "w");
	assert_non_null(file);
	fclose(file);
	file = fopen(fresh, "w"); /* our name, but no socket */
	assert_non_null(file);
	fclose(file);
	assert_int_equal(entries(directory), 4);
	assert_int_equal(qmt_shm_socket_listen(directory, &mine_fd, mine), QMLA_OK);
	assert_int_equal(access(dead, F_OK), -1);
	assert_int_equal(access(live, F_OK), 0);
	assert_int_equal(access(foreign, F_OK), 0);
	assert_int_equal(access(fresh, F_OK), 0);
	assert_string_not_equal(mine, live);
	assert_int_equal(qmt_shm_socket_connect(live, qmc_clock_after(QMC_NS_PER_S), &fd), QMLA_OK);
	close(fd);
	assert_int_equal(qmt_shm_socket_connect(dead, qmc_clock_after(QMC_NS_PER_S), &fd),
			 QMLA_ERR_UNAVAILABLE);
	assert_int_equal(qmt_shm_socket_connect(foreign, qmc_clock_after(QMC_NS_PER_S), &fd),
			 QMLA_ERR_UNAVAILABLE);
	close(live_fd);
	assert_int_equal(qmt_shm_socket_connect(live, qmc_clock_after(QMC_NS_PER_S), &fd),
			 QMLA_ERR_UNAVAILABLE);
	close(mine_fd);
	unlink(live);
	unlink(mine);
	unlink(foreign);
	unlink(fresh);
	assert_int_equal(rmdir(directory), 0);
}

static void the_directory_is_made(void **state)
{
	char base[] = "/tmp/qmt-test-XXXXXX", directory[64], path[QMT_ADDRESS_TEXT_MAX];
	struct stat st;
	int fd;

	(void)state;
	assert_non_null(mkdtemp(base));
	snprintf(directory, sizeof(directory), "%s/run", base);
	assert_int_equal(qmt_shm_socket_listen(directory, &fd, path), QMLA_OK);
	assert_int_equal(stat(directory, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(path[0], '/');
	close(fd);
	unlink(path);
	rmdir(directory);
	/* Not over a missing one. */
	snprintf(directory, sizeof(directory), "%s/a/b", base);
	assert_int_equal(qmt_shm_socket_listen(directory, &fd, path), QMLA_ERR_NOT_FOUND);
	rmdir(base);
}

static void bad_directories_are_refused(void **state)
{
	char base[] = "/tmp/qmt-test-XXXXXX", directory[160], path[QMT_ADDRESS_TEXT_MAX];
	int fd;
	FILE *file;

	(void)state;
	assert_non_null(mkdtemp(base));
	snprintf(directory, sizeof(directory), "%s/file", base);
	file = fopen(directory, "w");
	assert_non_null(file);
	fclose(file);
	assert_int_equal(qmt_shm_socket_listen(directory, &fd, path), QMLA_ERR_INVALID_ARGUMENT);
	unlink(directory);
	/* Longer than a socket's path may be. */
	snprintf(directory, sizeof(directory), "%s/%0100d", base, 0);
	assert_int_equal(qmt_shm_socket_listen(directory, &fd, path), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(entries(directory), 0);
	rmdir(directory);
	rmdir(base);
	assert_int_equal(qmt_shm_socket_connect(directory, qmc_clock_after(QMC_NS_PER_S), &fd),
			 QMLA_ERR_INVALID_ARGUMENT);
}

/* A killed server leaves its socket; the next one in its directory takes it away. */
static int serve_until_killed(int to_parent, const char *directory)
{
	char path[QMT_ADDRESS_TEXT_MAX];
	int fd;

	if (qmt_shm_socket_listen(directory, &fd, path) != QMLA_OK || !tell(to_parent, "g", 1))
		return 1;
	for (;;)
		pause();
}

static void after_a_kill_the_directory_is_cleaned(void **state)
{
	char directory[] = "/tmp/qmt-test-XXXXXX", path[QMT_ADDRESS_TEXT_MAX], go;
	int to_child, fd;
	pid_t child;

	(void)state;
	assert_non_null(mkdtemp(directory));
	child = child_start(serve_until_killed, directory, &to_child);
	assert_true(hear(to_child, &go, 1));
	child_kill(child, to_child);
	assert_int_equal(entries(directory), 1);
	assert_int_equal(qmt_shm_socket_listen(directory, &fd, path), QMLA_OK);
	assert_int_equal(entries(directory), 1);
	close(fd);
	unlink(path);
	assert_int_equal(rmdir(directory), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(stale_sockets_go_and_others_stay),
		CASE(the_directory_is_made),
		CASE(bad_directories_are_refused),
		CASE(after_a_kill_the_directory_is_cleaned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
