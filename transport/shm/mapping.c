/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/mapping.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "transport/shm/memory.h"

static void unmap(const struct qmt_mapping *mapping)
{
	munmap((void *)(uintptr_t)mapping->base, mapping->bytes);
}

void qmt_mappings_fini(struct qmt_mappings *mappings)
{
	for (size_t i = 0; i < mappings->count; i++)
		unmap(&mappings->list[i]);
	free(mappings->list);
	*mappings = (struct qmt_mappings){0};
}

static struct qmt_mapping *slot_for(struct qmt_mappings *mappings, uint64_t region)
{
	struct qmt_mapping *grown;

	for (size_t i = 0; i < mappings->count; i++) {
		if (mappings->list[i].region == region) {
			unmap(&mappings->list[i]);
			return &mappings->list[i];
		}
	}
	grown = realloc(mappings->list, (mappings->count + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	mappings->list = grown;
	return &grown[mappings->count++];
}

qmla_status_t qmt_mappings_add(struct qmt_mappings *mappings, uint64_t region, int fd,
			       uint64_t bytes)
{
	struct qmt_mapping *mapping;
	const void *base;
	qmla_status_t status = qmt_shm_map(fd, bytes, &base);

	if (status != QMLA_OK)
		return status;
	mapping = slot_for(mappings, region);
	if (!mapping) {
		munmap((void *)(uintptr_t)base, bytes);
		return QMLA_ERR_NO_MEMORY;
	}
	*mapping = (struct qmt_mapping){.region = region, .bytes = bytes, .base = base};
	return QMLA_OK;
}

const uint8_t *qmt_mappings_find(const struct qmt_mappings *mappings, uint64_t region,
				 uint64_t offset, uint64_t length)
{
	for (size_t i = 0; i < mappings->count; i++) {
		const struct qmt_mapping *mapping = &mappings->list[i];

		if (mapping->region != region)
			continue;
		if (length > mapping->bytes || offset > mapping->bytes - length)
			return NULL;
		return mapping->base + offset;
	}
	return NULL;
}
