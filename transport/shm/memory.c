/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

/*
 * A read-only descriptor alone protects nothing: a memfd's file mode lets its
 * holder open it again for writing through /proc. FUTURE_WRITE holds for every
 * descriptor, and SEAL keeps a peer from adding seals of its own.
 */
#define REGION_SEALS  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define STAGING_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static qmla_status_t region_check(const struct qmt_memory *memory, int *seals)
{
	struct stat st;

	*seals = memory->fd < 0 ? -1 : fcntl(memory->fd, F_GET_SEALS);
	if (*seals < 0 || fstat(memory->fd, &st) < 0) {
		qmc_error("shm", "the region's memory is no memfd: allocate it with memfd_create");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (st.st_size < 0 || (uint64_t)st.st_size < memory->bytes) {
		qmc_error("shm", "the memfd has %lld bytes, the region %llu", (long long)st.st_size,
			  (unsigned long long)memory->bytes);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

qmla_status_t qmt_shm_region_seal(const struct qmt_memory *memory, int *out)
{
	char path[40];
	int seals;
	qmla_status_t status = region_check(memory, &seals);
	int fd;

	if (status != QMLA_OK)
		return status;
	if ((seals & REGION_SEALS) != REGION_SEALS &&
	    fcntl(memory->fd, F_ADD_SEALS, REGION_SEALS) < 0) {
		qmc_error("shm",
			  "cannot seal the region's memfd (%s): create it with "
			  "MFD_ALLOW_SEALING",
			  strerror(errno));
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		qmc_error("shm", "cannot open %s read-only (%s): /proc must be mounted", path,
			  strerror(errno));
		return qmc_status_from_errno(errno);
	}
	*out = fd;
	return QMLA_OK;
}

qmla_status_t qmt_shm_staging_create(uint64_t bytes, int *out, void **base)
{
	int fd = memfd_create("qmt-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *mapped = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
		mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped != MAP_FAILED && fcntl(fd, F_ADD_SEALS, STAGING_SEALS) == 0) {
		*out = fd;
		*base = mapped;
		return QMLA_OK;
	}
	qmc_error("shm", "cannot make a staging buffer of %llu bytes: %s",
		  (unsigned long long)bytes, strerror(errno));
	if (mapped != MAP_FAILED)
		munmap(mapped, bytes);
	if (fd >= 0)
		close(fd);
	return QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmt_shm_check(int fd, uint64_t bytes)
{
	int seals = fcntl(fd, F_GET_SEALS); /* fails for anything but a memfd */
	struct stat st;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 || st.st_size < 0 ||
	    (uint64_t)st.st_size < bytes)
		return QMLA_ERR_PERMISSION;
	return QMLA_OK;
}

qmla_status_t qmt_shm_map(int fd, uint64_t bytes, const void **out)
{
	qmla_status_t status = qmt_shm_check(fd, bytes);
	void *base;

	if (status != QMLA_OK)
		return status;
	base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return QMLA_ERR_NO_MEMORY;
	*out = base;
	return QMLA_OK;
}
