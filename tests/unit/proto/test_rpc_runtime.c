/* SPDX-License-Identifier: Apache-2.0 */
/* What qmp_runtime_get promises about the process: here, errno after an allocation. */
#include "cmocka_all.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "proto/rpc_runtime.h"

#define THREADS 24 /* more than glibc gives arenas before it asks for the processors */

static pthread_barrier_t started;

static void *allocate(void *left)
{
	void *volatile memory;

	errno = 0;
	memory = malloc(1000);
	*(int *)left = errno;
	(void)pthread_barrier_wait(&started); /* arenas of ended threads would be used again */
	free(memory);
	return NULL;
}

/* gRPC reads errno after connect() only once it has allocated: see rpc_runtime.c. */
static void allocating_leaves_errno_without_sysfs(void **state)
{
	pthread_t threads[THREADS];
	int left[THREADS];

	(void)state;
	if ((unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0) ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    (access("/sys/devices", F_OK) == 0 && umount2("/sys", MNT_DETACH) < 0)) {
		print_message("skipped: /sys cannot be taken away: %s\n", strerror(errno));
		skip();
	}
	qmp_runtime_get();
	assert_int_equal(pthread_barrier_init(&started, NULL, THREADS), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, allocate, &left[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(left[i], 0);
	pthread_barrier_destroy(&started);
	qmp_runtime_put();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(allocating_leaves_errno_without_sysfs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
