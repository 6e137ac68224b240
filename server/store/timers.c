/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/timers.h"

#include <stdlib.h>

struct node {
	qmc_time_t when;
	uint32_t entry;
};

struct qms_timers {
	struct node *heap;
	uint32_t count;
	uint32_t *place; /* of an entry in the heap, plus 1; 0: no timer */
};

qmla_status_t qms_timers_create(uint32_t capacity, struct qms_timers **timers)
{
	struct qms_timers *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->heap = calloc(capacity, sizeof(*made->heap));
	made->place = calloc(capacity, sizeof(*made->place));
	if (!made->heap || !made->place) {
		qms_timers_destroy(made);
		return QMLA_ERR_NO_MEMORY;
	}
	*timers = made;
	return QMLA_OK;
}

void qms_timers_destroy(struct qms_timers *timers)
{
	if (!timers)
		return;
	free(timers->heap);
	free(timers->place);
	free(timers);
}

static void put(struct qms_timers *timers, uint32_t at, struct node node)
{
	timers->heap[at] = node;
	timers->place[node.entry] = at + 1;
}

static void sift_up(struct qms_timers *timers, uint32_t at, struct node node)
{
	while (at > 0 && timers->heap[(at - 1) / 2].when > node.when) {
		put(timers, at, timers->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	put(timers, at, node);
}

static void sift_down(struct qms_timers *timers, uint32_t at, struct node node)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= timers->count)
			break;
		if (child + 1 < timers->count &&
		    timers->heap[child + 1].when < timers->heap[child].when)
			child++;
		if (timers->heap[child].when >= node.when)
			break;
		put(timers, at, timers->heap[child]);
		at = child;
	}
	put(timers, at, node);
}

static void settle(struct qms_timers *timers, uint32_t at, struct node node)
{
	if (at > 0 && timers->heap[(at - 1) / 2].when > node.when)
		sift_up(timers, at, node);
	else
		sift_down(timers, at, node);
}

void qms_timers_set(struct qms_timers *timers, uint32_t entry, qmc_time_t when)
{
	struct node node = {when, entry};

	if (timers->place[entry])
		settle(timers, timers->place[entry] - 1, node);
	else
		sift_up(timers, timers->count++, node);
}

void qms_timers_clear(struct qms_timers *timers, uint32_t entry)
{
	uint32_t at = timers->place[entry];

	if (at == 0)
		return;
	timers->place[entry] = 0;
	timers->count--;
	if (at - 1 < timers->count)
		settle(timers, at - 1, timers->heap[timers->count]);
}

qmc_time_t qms_timers_get(const struct qms_timers *timers, uint32_t entry)
{
	return timers->place[entry] ? timers->heap[timers->place[entry] - 1].when : QMC_TIME_NEVER;
}

qmc_time_t qms_timers_next(const struct qms_timers *timers)
{
	return timers->count ? timers->heap[0].when : QMC_TIME_NEVER;
}

bool qms_timers_due(const struct qms_timers *timers, qmc_time_t now, uint32_t *entry)
{
	if (timers->count == 0 || timers->heap[0].when > now)
		return false;
	*entry = timers->heap[0].entry;
	return true;
}
