/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SMALL_PAGE UINT64_C(4096)
#define HUGE_PAGE  (UINT64_C(2) << 20)

struct qms_arena {
	void *base;
	uint64_t bytes;
	int fd;
};

static qmla_status_t complain(const struct qms_arena_config *config, const char *call)
{
	qmc_error("pool", "pool %u of %llu bytes: %s failed: %s; %s", config->number,
		  (unsigned long long)config->bytes, call, strerror(errno),
		  config->huge_pages ? "set aside enough 2 MiB pages (sysctl vm.nr_hugepages) or "
				       "leave out --huge-pages"
				     : "lower --pool-size or raise the memory or file limits");
	return QMLA_ERR_NO_MEMORY;
}

/*
 * Shrinking would make the node fault on its own memory, and a peer that holds
 * the descriptor must not be able to write. Kernels before 5.1 lack the last
 * seal; there the transport's read-only descriptor is the only guard.
 */
static int seal(int fd)
{
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
		return -1;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
		qmc_warn("pool", "the kernel cannot seal shared memory against writers: %s",
			 strerror(errno));
	return 0;
}

static qmla_status_t arena_open(const struct qms_arena_config *config, struct qms_arena *arena)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	char name[32];

	snprintf(name, sizeof(name), "qmla-pool-%u", config->number);
	arena->fd = memfd_create(name, config->huge_pages ? flags | MFD_HUGETLB : flags);
	if (arena->fd < 0)
		return complain(config, "memfd_create");
	if (ftruncate(arena->fd, (off_t)arena->bytes) != 0) {
		qmla_status_t status = complain(config, "ftruncate");

		close(arena->fd);
		return status;
	}
	return QMLA_OK;
}

static qmla_status_t arena_map(const struct qms_arena_config *config, struct qms_arena *arena)
{
	/*
	 * fallocate, not MAP_POPULATE: it reports a lack of memory instead of
	 * leaving it to a signal later.
	 */
	if (config->prefault && fallocate(arena->fd, 0, 0, (off_t)arena->bytes) != 0)
		return complain(config, "fallocate");
	arena->base = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE,
			   MAP_SHARED | (config->prefault ? MAP_POPULATE : 0), arena->fd, 0);
	if (arena->base == MAP_FAILED)
		return complain(config, "mmap");
	/* A core dump of the node shall not carry the cache. */
	madvise(arena->base, arena->bytes, MADV_DONTDUMP);
	if (seal(arena->fd) != 0) {
		qmla_status_t status = complain(config, "sealing");

		munmap(arena->base, arena->bytes);
		return status;
	}
	return QMLA_OK;
}

qmla_status_t qms_arena_create(const struct qms_arena_config *config, struct qms_arena **arena)
{
	uint64_t page = config->huge_pages ? HUGE_PAGE : SMALL_PAGE;
	struct qms_arena *made;
	qmla_status_t status;

	if (config->bytes == 0 || config->bytes > INT64_MAX - page)
		return QMLA_ERR_INVALID_ARGUMENT;
	made = calloc(1, sizeof(*made));
	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->bytes = (config->bytes + page - 1) / page * page;
	status = arena_open(config, made);
	if (status != QMLA_OK)
		goto err_free;
	status = arena_map(config, made);
	if (status != QMLA_OK)
		goto err_close;
	*arena = made;
	return QMLA_OK;

err_close:
	close(made->fd);
err_free:
	free(made);
	return status;
}

void qms_arena_destroy(struct qms_arena *arena)
{
	if (!arena)
		return;
	munmap(arena->base, arena->bytes);
	close(arena->fd);
	free(arena);
}

void *qms_arena_base(const struct qms_arena *arena)
{
	return arena->base;
}

uint64_t qms_arena_bytes(const struct qms_arena *arena)
{
	return arena->bytes;
}

int qms_arena_fd(const struct qms_arena *arena)
{
	return arena->fd;
}
