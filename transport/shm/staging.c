/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/staging.h"

#include <sys/mman.h>
#include <unistd.h>

#include "transport/shm/memory.h"

#define SPAN_ALIGN UINT64_C(64)

void qmt_staging_init(struct qmt_staging *staging)
{
	*staging = (struct qmt_staging){.fd = -1};
}

void qmt_staging_fini(struct qmt_staging *staging)
{
	if (staging->base)
		munmap(staging->base, staging->bytes);
	if (staging->fd >= 0)
		close(staging->fd);
	qmt_staging_init(staging);
}

static uint64_t aligned(uint64_t length)
{
	return (length + SPAN_ALIGN - 1) & ~(SPAN_ALIGN - 1);
}

qmla_status_t qmt_staging_reserve(struct qmt_staging *staging, uint64_t length, bool *fresh)
{
	struct qmt_staging grown = {.bytes = QMT_STAGING_BYTES};
	qmla_status_t status;
	void *base;

	if (staging->base && aligned(length) <= staging->bytes) {
		*fresh = false;
		return QMLA_OK;
	}
	if (aligned(length) > grown.bytes)
		grown.bytes = aligned(length);
	status = qmt_shm_staging_create(grown.bytes, &grown.fd, &base);
	if (status != QMLA_OK)
		return status;
	grown.base = base;
	qmt_staging_fini(staging);
	*staging = grown;
	*fresh = true;
	return QMLA_OK;
}

bool qmt_staging_take(struct qmt_staging *staging, uint64_t length, uint64_t *offset,
		      uint64_t *cost)
{
	uint64_t position, span = aligned(length), skip = 0;

	/* An empty ring starts over: the same few pages stay in the processor's cache. */
	if (staging->head == staging->tail)
		staging->head = staging->tail = 0;
	position = staging->tail % staging->bytes;
	if (position + span > staging->bytes)
		skip = staging->bytes - position;
	if (staging->tail - staging->head + skip + span > staging->bytes)
		return false;
	*offset = skip ? 0 : position;
	*cost = skip + span;
	staging->tail += skip + span;
	return true;
}

void qmt_staging_release(struct qmt_staging *staging, uint64_t cost)
{
	staging->head += cost;
}
