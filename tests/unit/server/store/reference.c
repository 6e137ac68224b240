/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <stddef.h>

bool reference_leased(const struct reference *reference, uint64_t offset)
{
	for (int i = 0; i < REFERENCE_LEASES; i++) {
		const struct reference_lease *lease = &reference->leases[i];

		for (int k = 0; lease->id && k < lease->count; k++) {
			if (lease->offsets[k] == offset)
				return true;
		}
	}
	return false;
}

int reference_key_at(const struct reference *reference, uint64_t offset)
{
	for (int k = 0; k < REFERENCE_KEYS; k++) {
		if (reference->keys[k].state == VISIBLE && reference->keys[k].offset == offset)
			return k;
	}
	return -1;
}

static bool reserved_or_pinned(const struct reference *reference, uint64_t offset)
{
	for (int k = 0; k < REFERENCE_KEYS; k++) {
		const struct reference_key *key = &reference->keys[k];

		if (key->offset == offset &&
		    (key->state == RESERVED || (key->state == VISIBLE && key->pinned)))
			return true;
	}
	return false;
}

int reference_held(const struct reference *reference)
{
	int held = 0;

	for (int slot = 0; slot < reference->slots; slot++) {
		uint64_t offset = (uint64_t)slot * 4096;

		held += reserved_or_pinned(reference, offset) ||
			reference_leased(reference, offset);
	}
	return held;
}

struct reference_lease *reference_lease_new(struct reference *reference)
{
	for (int i = 0; i < REFERENCE_LEASES; i++) {
		if (reference->leases[i].id == 0)
			return &reference->leases[i];
	}
	return NULL;
}
