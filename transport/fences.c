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

/* The finaliser of MurmurHash3, a bijection in which every bit changes half of the others. */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= UINT64_C(0xff51afd7ed558ccd);
	x ^= x >> 33;
	x *= UINT64_C(0xc4ceb9fe1a85ec53);
	return x ^ (x >> 33);
}

/*
 * Owners may put structure into a part of their capabilities (a table index, say).
 * Chosen collisions cost a peer's own accesses a longer chain.
 */
uint64_t qmt_capability_hash(const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	return mix(mix(qmt_load64(capability) + 1) ^ qmt_load64(capability + 8));
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
