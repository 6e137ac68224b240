/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_first.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "server/memory_limit.h"

#define GIB (UINT64_C(1) << 30)

static char root[64];

static int setup(void **state)
{
	(void)state;
	strcpy(root, "/tmp/qmla-limit-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	return system(command);
}

static void put(const char *path, const char *text)
{
	char command[512], full[256];
	FILE *file;

	snprintf(command, sizeof(command), "mkdir -p \"$(dirname '%s%s')\"", root, path);
	assert_int_equal(system(command), 0);
	snprintf(full, sizeof(full), "%s%s", root, path);
	file = fopen(full, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void nothing_known_is_no_limit(void **state)
{
	struct qms_memory_limit limit;

	(void)state;
	qms_memory_limit_read(root, &limit);
	assert_int_equal(limit.bytes, UINT64_MAX);
}

static void the_least_of_all_counts(void **state)
{
	struct qms_memory_limit limit;

	(void)state;
	put("/proc/meminfo", "MemTotal:       33554432 kB\nMemFree: 1 kB\n"
			     "MemAvailable:   16777216 kB\nHugePages_Free:      3\n"
			     "Hugepagesize:       2048 kB\n");
	qms_memory_limit_read(root, &limit);
	assert_int_equal(limit.bytes, 16 * GIB);
	assert_non_null(strstr(limit.source, "MemAvailable"));
	assert_int_equal(qms_memory_huge_pages(root), 3 * 2097152);

	/* Control groups v2: any level from the process's own up may be the narrow one. */
	put("/proc/self/cgroup", "0::/pods/cache\n");
	put("/sys/fs/cgroup/pods/cache/memory.max", "max\n");
	put("/sys/fs/cgroup/pods/memory.max", "8589934592\n");
	put("/sys/fs/cgroup/pods/memory.current", "2147483648\n");
	qms_memory_limit_read(root, &limit);
	assert_int_equal(limit.bytes, 6 * GIB);
	assert_non_null(strstr(limit.source, "control group"));

	/* v1, with its way of saying "none" at the root. */
	put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/pods\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/pods/memory.limit_in_bytes", "4294967296\n");
	put("/sys/fs/cgroup/memory/pods/memory.usage_in_bytes", "1073741824\n");
	qms_memory_limit_read(root, &limit);
	assert_int_equal(limit.bytes, 3 * GIB);

	/* Over its limit already. */
	put("/sys/fs/cgroup/memory/pods/memory.usage_in_bytes", "5368709120\n");
	qms_memory_limit_read(root, &limit);
	assert_int_equal(limit.bytes, 0);
}

static void garbage_is_no_limit(void **state)
{
	struct qms_memory_limit limit;

	(void)state;
	put("/proc/meminfo", "MemAvailable: lots\n");
	put("/proc/self/cgroup", "nonsense\n0:\n\n");
	put("/sys/fs/cgroup/memory.max", "");
	qms_memory_limit_read(root, &limit);
	assert_int_equal(limit.bytes, UINT64_MAX);
}

static void this_machine_has_some_but_not_an_exbibyte(void **state)
{
	(void)state;
	assert_int_equal(qms_memory_limit_check(4096, false), QMLA_OK);
	assert_int_equal(qms_memory_limit_check(UINT64_C(1) << 60, false), QMLA_ERR_NO_MEMORY);
	assert_int_equal(qms_memory_limit_check(UINT64_C(1) << 60, true), QMLA_ERR_NO_MEMORY);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(nothing_known_is_no_limit),
		T(the_least_of_all_counts),
		T(garbage_is_no_limit),
		T(this_machine_has_some_but_not_an_exbibyte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
