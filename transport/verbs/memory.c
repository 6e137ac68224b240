/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/log.h"

#define CHUNK_ALIGN (UINT64_C(2) << 20) /* a huge page: no chunk begins inside of one */
#define MPOL_NODE   1                   /* of linux/mempolicy.h, without libnuma */
#define MPOL_ADDR   2

const char *qmt_memory_kind_text(enum qmt_memory_kind kind)
{
	switch (kind) {
	case QMT_MEMORY_HOST:
		return "host memory";
	case QMT_MEMORY_HUGE:
		return "host memory, huge pages";
	case QMT_MEMORY_DMABUF:
		return "GPU memory by dma-buf";
	case QMT_MEMORY_PEERMEM:
		return "GPU memory by nvidia_peermem";
	case QMT_MEMORY_STAGED:
		return "GPU memory staged through host memory";
	}
	return "memory";
}

bool qmt_memory_is_huge(const void *address)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	unsigned long begin, end, kib, wanted = (unsigned long)(uintptr_t)address;
	bool inside = false, huge = false;
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
			if (inside)
				break;
			inside = wanted >= begin && wanted < end;
		} else if (inside && sscanf(line, "KernelPageSize: %lu kB", &kib) == 1) {
			huge = kib > 64;
		}
	}
	if (file)
		fclose(file);
	return huge;
}

int qmt_memory_numa_node(void *address)
{
	int node = QMT_NUMA_UNKNOWN;

	if (syscall(SYS_get_mempolicy, &node, NULL, 0UL, address, MPOL_NODE | MPOL_ADDR) != 0)
		return QMT_NUMA_UNKNOWN;
	return node;
}

void qmt_registration_end(const struct qmt_verbs_api *api, struct qmt_registration *registration)
{
	for (size_t i = 0; i < registration->count; i++)
		api->dereg_mr(registration->chunks[i]);
	memset(registration, 0, sizeof(*registration));
}

/* ---- one chunk ---- */

/* The probe of UCX and NCCL: with a descriptor that is none, EBADF means that it looked. */
static bool supports_dmabuf(const struct qmt_port *port, struct ibv_pd *pd)
{
	struct ibv_mr *mr;

	if (!port->api->reg_dmabuf_mr)
		return false;
	errno = 0;
	mr = port->api->reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
	if (mr) {
		port->api->dereg_mr(mr);
		return true;
	}
	return errno == EBADF;
}

static struct ibv_mr *register_dmabuf(const struct qmt_port *port, struct ibv_pd *pd,
				      const struct qmt_gpu_api *gpu, uint8_t *base, uint64_t bytes,
				      int access)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t offset = (uint64_t)(uintptr_t)base % page;
	uint64_t whole = (offset + bytes + page - 1) / page * page;
	int fd = gpu->export_dmabuf(base - offset, whole), error;
	struct ibv_mr *mr;

	if (fd < 0) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	mr = port->api->reg_dmabuf_mr(pd, offset, bytes, (uint64_t)(uintptr_t)base, fd, access);
	error = errno;
	close(fd); /* the registration holds the buffer */
	errno = error;
	return mr;
}

static struct ibv_mr *register_chunk(const struct qmt_port *port, struct ibv_pd *pd,
				     const struct qmt_gpu_api *gpu, enum qmt_memory_kind kind,
				     uint8_t *base, uint64_t bytes, int access)
{
	if (kind == QMT_MEMORY_DMABUF)
		return register_dmabuf(port, pd, gpu, base, bytes, access);
	return port->api->reg_mr(pd, base, bytes, access);
}

/* ---- all of them ---- */

static uint64_t count_chunks(uint64_t bytes, uint64_t chunk)
{
	return (bytes - 1) / chunk + 1;
}

/* The errno of the first chunk that fails; nothing stays registered then. */
static int register_all(const struct qmt_port *port, struct ibv_pd *pd,
			const struct qmt_gpu_api *gpu, const struct qmt_memory *memory, int access,
			struct qmt_registration *registration)
{
	uint8_t *base = memory->base;

	registration->count = 0;
	for (uint64_t at = 0; at < memory->bytes; at += registration->chunk_bytes) {
		uint64_t left = memory->bytes - at;
		uint64_t bytes =
			left < registration->chunk_bytes ? left : registration->chunk_bytes;
		struct ibv_mr *mr =
			register_chunk(port, pd, gpu, registration->kind, base + at, bytes, access);

		if (!mr) {
			int error = errno ? errno : EIO;

			while (registration->count > 0)
				port->api->dereg_mr(registration->chunks[--registration->count]);
			return error;
		}
		registration->chunks[registration->count++] = mr;
	}
	return 0;
}

static qmla_status_t refuse(const struct qmt_port *port, const struct qmt_memory *memory, int error)
{
	struct rlimit limit = {0};

	(void)getrlimit(RLIMIT_MEMLOCK, &limit);
	if (error == ENOMEM || error == EAGAIN || error == EPERM) {
		qmc_error("verbs",
			  "%s cannot register %" PRIu64
			  " bytes: %s; the limit of locked memory (memlock) is "
			  "%llu KiB (raise 'ulimit -l', or LimitMEMLOCK= of the service), or the "
			  "device has no resources left",
			  port->name, memory->bytes, strerror(error),
			  (unsigned long long)limit.rlim_cur / 1024);
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	qmc_error("verbs", "%s cannot register %" PRIu64 " bytes: %s", port->name, memory->bytes,
		  strerror(error));
	return QMLA_ERR_INTERNAL;
}

/* As large as the device says, then smaller: some say more than they can. */
static qmla_status_t register_split(const struct qmt_port *port, struct ibv_pd *pd,
				    const struct qmt_gpu_api *gpu, const struct qmt_memory *memory,
				    int access, struct qmt_registration *registration)
{
	uint64_t most = port->attr.max_mr_size ? port->attr.max_mr_size : UINT64_MAX;
	int error = 0;

	registration->chunk_bytes = memory->bytes;
	if (memory->bytes > most)
		registration->chunk_bytes =
			most > CHUNK_ALIGN ? most / CHUNK_ALIGN * CHUNK_ALIGN : most;
	for (;;) {
		uint64_t half;

		if (count_chunks(memory->bytes, registration->chunk_bytes) > QMT_CHUNKS_MAX) {
			if (error)
				return refuse(port, memory, error);
			qmc_error("verbs",
				  "%s registers at most %" PRIu64 " bytes at a time: %" PRIu64
				  " bytes are more than %d of that; use smaller pools",
				  port->name, registration->chunk_bytes, memory->bytes,
				  QMT_CHUNKS_MAX);
			return QMLA_ERR_TOO_LARGE;
		}
		error = register_all(port, pd, gpu, memory, access, registration);
		if (error == 0)
			return QMLA_OK;
		half = registration->chunk_bytes / 2 / CHUNK_ALIGN * CHUNK_ALIGN;
		if (half == 0)
			return refuse(port, memory, error);
		registration->chunk_bytes = half;
	}
}

static bool has_peermem(const struct qmt_gpu_api *gpu)
{
	return gpu->peermem && access(gpu->peermem, F_OK) == 0;
}

static qmla_status_t register_gpu(const struct qmt_port *port, struct ibv_pd *pd,
				  const struct qmt_gpu_api *gpu, const struct qmt_memory *memory,
				  int flags, struct qmt_registration *registration)
{
	qmla_status_t status = QMLA_ERR_UNSUPPORTED;

	gpu->order(memory->base);
	registration->kind = QMT_MEMORY_DMABUF;
	/* Windows cannot be bound to dma-buf memory. */
	if (supports_dmabuf(port, pd))
		status = register_split(port, pd, gpu, memory, flags & ~IBV_ACCESS_MW_BIND,
					registration);
	if (status != QMLA_OK && has_peermem(gpu)) {
		registration->kind = QMT_MEMORY_PEERMEM;
		status = register_split(port, pd, gpu, memory, flags, registration);
	}
	if (status == QMLA_OK)
		return QMLA_OK;
	qmc_warn(
		"verbs",
		"%s reaches this GPU's memory neither by dma-buf (driver and kernel 5.12 or newer) "
		"nor by nvidia_peermem ('modprobe nvidia_peermem'): staging through host memory",
		port->name);
	return QMLA_ERR_UNSUPPORTED;
}

qmla_status_t qmt_registration_create(const struct qmt_port *port, struct ibv_pd *pd,
				      const struct qmt_gpu_api *gpu,
				      const struct qmt_memory *memory, int access,
				      struct qmt_registration *registration)
{
	struct qmt_registration made = {.kind = QMT_MEMORY_HOST};
	char pci[16];
	qmla_status_t status;

	if (gpu && gpu->owns(memory->base, pci)) {
		status = register_gpu(port, pd, gpu, memory, access, &made);
	} else {
		if (qmt_memory_is_huge(memory->base))
			made.kind = QMT_MEMORY_HUGE;
		status = register_split(port, pd, gpu, memory, access, &made);
	}
	if (status != QMLA_OK)
		return status;
	qmc_debug("verbs", "%s: %" PRIu64 " bytes registered in %zu piece(s): %s", port->name,
		  memory->bytes, made.count, qmt_memory_kind_text(made.kind));
	*registration = made;
	return QMLA_OK;
}
