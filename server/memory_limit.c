/* SPDX-License-Identifier: Apache-2.0 */
#include "server/memory_limit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/log.h"

#define PATH_BYTES 1024

static FILE *open_below(const char *root, const char *path)
{
	char full[PATH_BYTES];
	int n = snprintf(full, sizeof(full), "%s%s", root, path);

	return n > 0 && (size_t)n < sizeof(full) ? fopen(full, "re") : NULL;
}

/* Value of "Name:  123 kB" in /proc/meminfo, as it stands there. */
static bool read_meminfo(const char *root, const char *name, uint64_t *value)
{
	FILE *file = open_below(root, "/proc/meminfo");
	char line[256];
	bool found = false;

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		size_t length = strlen(name);

		if (strncmp(line, name, length) == 0 && line[length] == ':')
			found = sscanf(line + length + 1, "%" SCNu64, value) == 1;
	}
	fclose(file);
	return found;
}

/* A control file with one number; "max" and missing files are no limit. */
static bool read_number(const char *root, const char *directory, const char *file_name,
			uint64_t *value)
{
	char path[PATH_BYTES];
	int n = snprintf(path, sizeof(path), "%s/%s", directory, file_name);
	FILE *file = n > 0 && (size_t)n < sizeof(path) ? open_below(root, path) : NULL;
	bool found;

	if (!file)
		return false;
	found = fscanf(file, "%" SCNu64, value) == 1;
	fclose(file);
	return found;
}

static void lower(struct qms_memory_limit *limit, uint64_t bytes, const char *source)
{
	if (bytes < limit->bytes)
		*limit = (struct qms_memory_limit){bytes, source};
}

static void read_group(const char *root, const char *directory, const char *limit_name,
		       const char *used_name, struct qms_memory_limit *limit)
{
	uint64_t most, used = 0;

	/* v1 writes "no limit" as a huge number of pages. */
	if (!read_number(root, directory, limit_name, &most) || most > UINT64_MAX / 4)
		return;
	read_number(root, directory, used_name, &used);
	lower(limit, used < most ? most - used : 0, "the control group's memory limit");
}

/* Every group from the process's own up to the root may set a limit. */
static void read_group_chain(const char *root, const char *mount, char *path,
			     const char *limit_name, const char *used_name,
			     struct qms_memory_limit *limit)
{
	char directory[PATH_BYTES];

	for (;;) {
		char *slash;
		int n = snprintf(directory, sizeof(directory), "%s%s", mount,
				 strcmp(path, "/") == 0 ? "" : path);

		if (n > 0 && (size_t)n < sizeof(directory))
			read_group(root, directory, limit_name, used_name, limit);
		slash = strrchr(path, '/');
		if (!slash || path[0] == '\0')
			return;
		*slash = '\0';
	}
}

static void read_groups(const char *root, struct qms_memory_limit *limit)
{
	FILE *file = open_below(root, "/proc/self/cgroup");
	char line[PATH_BYTES];

	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':');
		char *path = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (controllers[1] == '\0')
			read_group_chain(root, "/sys/fs/cgroup", path, "memory.max",
					 "memory.current", limit);
		else if (strcmp(controllers + 1, "memory") == 0)
			read_group_chain(root, "/sys/fs/cgroup/memory", path,
					 "memory.limit_in_bytes", "memory.usage_in_bytes", limit);
	}
	fclose(file);
}

void qms_memory_limit_read(const char *root, struct qms_memory_limit *limit)
{
	struct rlimit address_space;
	uint64_t kib;

	*limit = (struct qms_memory_limit){UINT64_MAX, "nothing"};
	if (read_meminfo(root, "MemAvailable", &kib))
		lower(limit, kib * 1024, "MemAvailable of /proc/meminfo");
	read_groups(root, limit);
	if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY)
		lower(limit, address_space.rlim_cur, "the limit of address space (ulimit -v)");
}

uint64_t qms_memory_huge_pages(const char *root)
{
	uint64_t pages = 0, kib = 0;

	if (!read_meminfo(root, "HugePages_Free", &pages) ||
	    !read_meminfo(root, "Hugepagesize", &kib))
		return 0;
	return pages * kib * 1024;
}

static double gib(uint64_t bytes)
{
	return (double)bytes / 0x1p30;
}

qmla_status_t qms_memory_limit_check(uint64_t wanted, bool huge_pages)
{
	struct qms_memory_limit limit;

	if (huge_pages) {
		uint64_t there = qms_memory_huge_pages("");

		if (wanted <= there)
			return QMLA_OK;
		qmc_error(
			"node",
			"--pool-size is %.2f GiB but only %.2f GiB of huge pages are free: set "
			"aside more (sysctl vm.nr_hugepages=%llu), lower --pool-size or leave out "
			"--huge-pages",
			gib(wanted), gib(there),
			(unsigned long long)((wanted + (2u << 20) - 1) / (2u << 20)));
		return QMLA_ERR_NO_MEMORY;
	}
	qms_memory_limit_read("", &limit);
	if (wanted <= limit.bytes)
		return QMLA_OK;
	qmc_error("node",
		  "--pool-size is %.2f GiB but %s leaves %.2f GiB: lower --pool-size or make room",
		  gib(wanted), limit.source, gib(limit.bytes));
	return QMLA_ERR_NO_MEMORY;
}
