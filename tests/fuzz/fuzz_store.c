/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as a programme of calls to a small store: every call with every argument
 * that a client could send, tickets and leases real or made up, time moving
 * forward. After each programme the invariants must hold, and when all time has
 * passed nothing may be held any more.
 */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "server/store/store.h"

#define SLOTS   4u
#define HANDLES 8u
#define STEPS   256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct run {
	struct qms_store *store;
	const uint8_t *data;
	size_t left;
	qmc_time_t ahead; /* how far the store's time is moved */
	uint64_t tickets[HANDLES], leases[HANDLES], tokens[HANDLES];
	struct qms_capability capabilities[HANDLES];
	bool moving[HANDLES];
};

static uint8_t byte(struct run *run)
{
	if (run->left == 0)
		return 0;
	run->left--;
	return *run->data++;
}

static struct qms_identity identity_of(uint8_t n)
{
	struct qms_identity identity;

	memset(&identity, n % 3, sizeof(identity));
	return identity;
}

static void keys_of(struct run *run, struct qms_key *keys, size_t count)
{
	memset(keys, 0, count * sizeof(*keys));
	for (size_t i = 0; i < count; i++)
		keys[i].bytes[0] = byte(run) % 16;
}

static void open_identity(struct run *run)
{
	struct qms_identity identity = identity_of(byte(run));
	struct qms_layout layout = {.layers = 1u + byte(run) % 2,
				    .block_bytes = 4096u * (byte(run) % 8)};
	struct qms_pool_info info;

	(void)!qms_store_open(run->store, &identity, &layout, &info);
}

static void reserve(struct run *run)
{
	struct qms_identity identity = identity_of(byte(run));
	struct qms_reserve_entry entries[4];
	struct qms_key keys[4];
	struct qms_grant grant;
	size_t count = 1 + byte(run) % 4;

	keys_of(run, keys, count);
	if (qms_store_reserve(run->store, &identity, keys, count, byte(run) * QMC_NS_PER_MS,
			      entries, &grant) != QMLA_OK)
		return;
	for (size_t i = 0; i < count; i++) {
		size_t handle = byte(run) % HANDLES;

		if (entries[i].status == QMLA_OK) {
			run->tickets[handle] = entries[i].ticket;
			run->capabilities[handle] = grant.capability;
		}
	}
}

static void lookup(struct run *run)
{
	struct qms_identity identity = identity_of(byte(run));
	struct qms_lookup_entry entries[4];
	struct qms_key keys[4];
	struct qms_grant grant;
	size_t count = 1 + byte(run) % 4;
	size_t handle = byte(run) % HANDLES;

	keys_of(run, keys, count);
	if (qms_store_lookup(run->store, &identity, keys, count, byte(run) * QMC_NS_PER_MS,
			     byte(run) & 1, entries, &grant) == QMLA_OK &&
	    grant.lease) {
		run->leases[handle] = grant.lease;
		run->capabilities[handle] = grant.capability;
	}
}

static void move(struct run *run)
{
	size_t handle = byte(run) % HANDLES;
	uint64_t offset = byte(run) * UINT64_C(1024);

	if (run->moving[handle]) {
		qms_store_access_end(run->store, run->tokens[handle]);
		run->moving[handle] = false;
	} else {
		run->moving[handle] =
			qms_store_access_begin(run->store, byte(run) & 1, byte(run) % 3, offset,
					       1u + byte(run) * 64u, &run->capabilities[handle],
					       &run->tokens[handle]) == QMLA_OK;
	}
}

static void administer(struct run *run)
{
	static const char *const owners[] = {"", "a", "b"};
	struct qms_identity identity = identity_of(byte(run));
	uint8_t what = byte(run);
	uint64_t removed, busy;
	struct qms_key key;

	keys_of(run, &key, 1);
	switch (what % 5) {
	case 0:
		(void)!qms_store_remove(run->store, &identity, &key);
		break;
	case 1:
		(void)!qms_store_report(run->store, &identity, &key, byte(run));
		break;
	case 2:
		(void)!qms_store_pin(run->store, &identity, &key, owners[what / 5 % 3],
				     byte(run) * QMC_NS_PER_MS);
		break;
	case 3:
		(void)!qms_store_unpin(run->store, &identity, &key, owners[what / 5 % 3]);
		break;
	default:
		qms_store_remove_all(run->store, &identity, &removed, &busy);
	}
}

static void step(struct run *run)
{
	size_t handle;
	int64_t granted;

	switch (byte(run) % 9) {
	case 0:
		open_identity(run);
		break;
	case 1:
	case 2:
		reserve(run);
		break;
	case 3:
		handle = byte(run) % HANDLES;
		(void)!qms_store_commit(run->store, run->tickets[handle], byte(run));
		break;
	case 4:
		handle = byte(run) % HANDLES;
		(void)!qms_store_abort(run->store, run->tickets[handle] ^ (byte(run) == 255));
		break;
	case 5:
		lookup(run);
		break;
	case 6:
		handle = byte(run) % HANDLES;
		if (byte(run) & 1)
			(void)!qms_store_release(run->store, run->leases[handle]);
		else
			(void)!qms_store_renew(run->store, run->leases[handle],
					       byte(run) * QMC_NS_PER_MS, &granted);
		break;
	case 7:
		move(run);
		break;
	default:
		if (byte(run) & 1) {
			administer(run);
		} else {
			run->ahead += byte(run) * QMC_NS_PER_MS;
			qms_store_expire(run->store, qmc_clock_now() + run->ahead);
		}
	}
}

static void must_be_sound(struct qms_store *store)
{
	char why[256] = "";

	if (!qms_store_check(store, why, sizeof(why))) {
		fprintf(stderr, "broken invariant: %s\n", why);
		abort();
	}
}

static void finish(struct run *run)
{
	struct qms_store_stats stats;

	must_be_sound(run->store);
	for (size_t i = 0; i < HANDLES; i++) {
		if (run->moving[i])
			qms_store_access_end(run->store, run->tokens[i]);
	}
	qms_store_expire(run->store, qmc_clock_now() + 48 * 3600 * QMC_NS_PER_S);
	must_be_sound(run->store);
	qms_store_stats(run->store, &stats);
	if (stats.leases || stats.tickets || stats.pins || stats.inflight)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct qms_store_config config = {.pool_bytes = 2u * SLOTS * 4096u,
					  .max_identities = 2,
					  .max_leases = 4,
					  .max_leased_slots = 16,
					  .max_tickets = 8,
					  .max_pins = 4};
	struct run run = {.data = data, .left = size};

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (qms_store_create(&config, &run.store) != QMLA_OK)
		abort();
	for (unsigned i = 0; i < STEPS && run.left > 0; i++)
		step(&run);
	finish(&run);
	qms_store_destroy(run.store);
	return 0;
}
