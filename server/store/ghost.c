/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/ghost.h"

#include <stdlib.h>

#define WAYS 4u

struct mark {
	uint32_t fingerprint;
	uint32_t time; /* of insertion, in insertions; 0: empty */
};

struct qms_ghost {
	uint32_t capacity;
	uint32_t mask; /* of buckets */
	uint32_t time;
	struct mark *marks;
};

qmla_status_t qms_ghost_create(uint32_t capacity, struct qms_ghost **ghost)
{
	struct qms_ghost *made = calloc(1, sizeof(*made));
	uint32_t buckets = 1;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	/* Twice the room, so that a bucket seldom drops a mark that is still valid. */
	while (buckets < capacity / (WAYS / 2) && buckets < UINT32_C(1) << 28)
		buckets *= 2;
	made->capacity = capacity;
	made->mask = buckets - 1;
	made->marks = calloc((size_t)buckets * WAYS, sizeof(*made->marks));
	if (!made->marks) {
		free(made);
		return QMLA_ERR_NO_MEMORY;
	}
	*ghost = made;
	return QMLA_OK;
}

void qms_ghost_destroy(struct qms_ghost *ghost)
{
	if (!ghost)
		return;
	free(ghost->marks);
	free(ghost);
}

static struct mark *bucket_of(const struct qms_ghost *ghost, uint64_t hash)
{
	return &ghost->marks[(size_t)((uint32_t)hash & ghost->mask) * WAYS];
}

static uint32_t fingerprint_of(uint64_t hash)
{
	return (uint32_t)(hash >> 32);
}

static bool valid(const struct qms_ghost *ghost, const struct mark *mark)
{
	return mark->time != 0 && ghost->time - mark->time < ghost->capacity;
}

void qms_ghost_add(struct qms_ghost *ghost, uint64_t hash)
{
	struct mark *bucket = bucket_of(ghost, hash);
	struct mark *oldest = &bucket[0];

	for (uint32_t i = 0; i < WAYS; i++) {
		if (!valid(ghost, &bucket[i])) {
			oldest = &bucket[i];
			break;
		}
		if (ghost->time - bucket[i].time > ghost->time - oldest->time)
			oldest = &bucket[i];
	}
	if (++ghost->time == 0) /* wrapped: 0 means empty */
		ghost->time = 1;
	*oldest = (struct mark){fingerprint_of(hash), ghost->time};
}

bool qms_ghost_take(struct qms_ghost *ghost, uint64_t hash)
{
	struct mark *bucket = bucket_of(ghost, hash);

	for (uint32_t i = 0; i < WAYS; i++) {
		if (valid(ghost, &bucket[i]) && bucket[i].fingerprint == fingerprint_of(hash)) {
			bucket[i].time = 0;
			return true;
		}
	}
	return false;
}
