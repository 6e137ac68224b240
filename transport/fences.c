/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fences.h"

#include <stdlib.h>
#include <string.h>

#include "transport/bytes.h"

#define CHAINS QMT_FENCES_MAX
#define NONE   0 /* entries are numbered from 1 */

struct entry {
	uint8_t capability[QMT_CAPABILITY_BYTES];
	uint32_t next; /* in its chain */
};

struct qmt_fences {
	uint32_t chains[CHAINS];
	struct entry entries[QMT_FENCES_MAX + 1]; /* a ring; 0 is not used */
	uint32_t last;                            /* entry written last */
	uint32_t count;
};

/*
 * Owners may put structure into a part of their capabilities (a table index, say).
 * Chosen collisions cost a peer's own accesses a longer chain.
 */
uint64_t qmt_capability_hash(const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	uint64_t mixed = (qmt_load64(capability) ^ UINT64_C(0x9e3779b97f4a7c15)) *
			 UINT64_C(0xbf58476d1ce4e5b9);

	mixed = (mixed ^ (mixed >> 32) ^ qmt_load64(capability + 8)) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ (mixed >> 29);
}

static uint32_t chain_of(const uint8_t *capability)
{
	return (uint32_t)(qmt_capability_hash(capability) % CHAINS);
}

qmla_status_t qmt_fences_create(struct qmt_fences **fences)
{
	struct qmt_fences *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	*fences = made;
	return QMLA_OK;
}

void qmt_fences_destroy(struct qmt_fences *fences)
{
	free(fences);
}

bool qmt_fences_has(const struct qmt_fences *fences, const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	uint32_t at = fences->chains[chain_of(capability)];

	while (at != NONE) {
		if (memcmp(fences->entries[at].capability, capability, QMT_CAPABILITY_BYTES) == 0)
			return true;
		at = fences->entries[at].next;
	}
	return false;
}

static void unlink_entry(struct qmt_fences *fences, uint32_t number)
{
	uint32_t *link = &fences->chains[chain_of(fences->entries[number].capability)];

	while (*link != number)
		link = &fences->entries[*link].next;
	*link = fences->entries[number].next;
}

void qmt_fences_add(struct qmt_fences *fences, const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	uint32_t number = fences->last % QMT_FENCES_MAX + 1;
	uint32_t chain = chain_of(capability);

	if (qmt_fences_has(fences, capability))
		return;
	if (fences->count == QMT_FENCES_MAX)
		unlink_entry(fences, number);
	else
		fences->count++;
	memcpy(fences->entries[number].capability, capability, QMT_CAPABILITY_BYTES);
	fences->entries[number].next = fences->chains[chain];
	fences->chains[chain] = number;
	fences->last = number;
}
