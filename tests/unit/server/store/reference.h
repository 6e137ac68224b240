/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The store as plainly as can be: arrays searched from end to end, no locks, no
 * eviction order. It says what the real one may answer.
 */
#ifndef TEST_STORE_REFERENCE_H
#define TEST_STORE_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/store/types.h"

#define REFERENCE_KEYS   64
#define REFERENCE_LEASES 32

enum reference_state { ABSENT, RESERVED, VISIBLE };

struct reference_key {
	enum reference_state state;
	uint64_t ticket;
	uint64_t generation;
	uint64_t offset;
	bool pinned;
};

/* A lease covers slots, whatever becomes of their keys. */
struct reference_lease {
	uint64_t id; /* 0: unused */
	struct qms_capability capability;
	int count;
	uint64_t offsets[8];
};

struct reference {
	int slots;
	struct reference_key keys[REFERENCE_KEYS];
	struct reference_lease leases[REFERENCE_LEASES];
};

/** Slots that cannot be given to a new key: reserved, pinned, leased or removed under a lease. */
int reference_held(const struct reference *reference);

/** True when some lease in force covers the slot at @p offset. */
bool reference_leased(const struct reference *reference, uint64_t offset);

/** The visible key that stands at @p offset, or -1. */
int reference_key_at(const struct reference *reference, uint64_t offset);

/** An unused lease, NULL when all are used. */
struct reference_lease *reference_lease_new(struct reference *reference);

#endif /* TEST_STORE_REFERENCE_H */
