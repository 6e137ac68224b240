/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "transport/verbs/endpoint_internal.h"

#define PAGE 4096

/* Servers fetch from here when they have no windows; from nowhere else in this process. */
static bool make(struct qmt_verbs_endpoint *endpoint)
{
	struct qmt_bounce *bounce = &endpoint->bounce;
	size_t bytes = (size_t)QMT_BOUNCES * QMT_BOUNCE_BYTES;
	int access = IBV_ACCESS_LOCAL_WRITE;

	if (endpoint->answer.write_mode == QMT_WRITE_PULL)
		access |= IBV_ACCESS_REMOTE_READ;
	bounce->memory = aligned_alloc(PAGE, bytes);
	if (!bounce->memory)
		return false;
	memset(bounce->memory, 0, bytes);
	for (size_t i = 0; i < endpoint->domain->count; i++) {
		if (!endpoint->rails[i].used)
			continue;
		bounce->mrs[i] = endpoint->domain->api->reg_mr(endpoint->domain->pds[i],
							       bounce->memory, bytes, access);
		if (!bounce->mrs[i]) {
			qmc_warn_limited("verbs", "%s: no %zu bytes can be pinned to stage through",
					 endpoint->domain->ports[i].name, bytes);
			qmt_bounce_fini(endpoint);
			return false;
		}
	}
	return true;
}

int qmt_bounce_take(struct qmt_verbs_endpoint *endpoint)
{
	struct qmt_bounce *bounce = &endpoint->bounce;

	if (!bounce->memory && !make(endpoint)) {
		qmt_verbs_die(endpoint, "no memory to stage through");
		return QMT_NO_BOUNCE;
	}
	for (int i = 0; i < QMT_BOUNCES; i++) {
		if (!bounce->taken[i]) {
			bounce->taken[i] = true;
			return i;
		}
	}
	return QMT_NO_BOUNCE;
}

void qmt_bounce_give(struct qmt_verbs_endpoint *endpoint, int bounce)
{
	if (bounce != QMT_NO_BOUNCE)
		endpoint->bounce.taken[bounce] = false;
}

uint8_t *qmt_bounce_memory(const struct qmt_verbs_endpoint *endpoint, int bounce)
{
	return endpoint->bounce.memory + (size_t)bounce * QMT_BOUNCE_BYTES;
}

static bool is_gpu(const struct qmt_verbs_endpoint *endpoint, const void *address)
{
	const uint8_t *p = address;

	for (size_t i = 0; i < endpoint->area_count; i++) {
		const struct qmt_area *area = endpoint->areas[i];

		if (area->gpu && p >= area->base && p < area->base + area->bytes)
			return true;
	}
	return false;
}

bool qmt_bounce_copy(const struct qmt_verbs_endpoint *endpoint, void *to, const void *from,
		     size_t bytes)
{
	const struct qmt_gpu_api *gpu = endpoint->domain->gpu;

	if (gpu && (is_gpu(endpoint, to) || is_gpu(endpoint, from)))
		return gpu->copy(to, from, bytes);
	memcpy(to, from, bytes);
	return true;
}

void qmt_bounce_fini(struct qmt_verbs_endpoint *endpoint)
{
	struct qmt_bounce *bounce = &endpoint->bounce;

	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (bounce->mrs[i])
			endpoint->domain->api->dereg_mr(bounce->mrs[i]);
	}
	free(bounce->memory);
	memset(bounce, 0, sizeof(*bounce));
}
