/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads do everything at once on a small store while another one ends
 * what expires; between rounds all stand still and the invariants are checked.
 * Each block holds its key and generation, written only under a ticket: a reader
 * with a lease that sees anything else has been given a slot that was reused.
 */
#include "../cmocka_first.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "support.h"

#define THREADS 4
#define SLOTS   32u
#define KEYS    128u
#define ROUNDS  12

struct shared {
	struct qms_store *store;
	char *base;
	atomic_bool stop;
	atomic_int wrong; /* blocks with other bytes than promised */
	atomic_ullong reads, writes;
};

struct worker {
	struct shared *shared;
	uint64_t random;
};

struct stamp {
	uint64_t key, generation;
};

static qmla_status_t verify(void *user, const struct qms_block_view *block)
{
	struct stamp stamp;

	(void)user;
	memcpy(&stamp, block->data, sizeof(stamp));
	return stamp.generation == block->generation ? QMLA_OK : QMLA_ERR_CORRUPT;
}

static void write_some(struct worker *w)
{
	struct shared *shared = w->shared;
	struct qms_identity identity = identity_of(1);
	struct qms_reserve_entry entries[4];
	struct qms_key keys[4];
	uint64_t numbers[4];
	struct qms_grant grant;

	for (int i = 0; i < 4; i++) {
		numbers[i] = random_next(&w->random) % KEYS;
		keys[i] = key_of(numbers[i]);
	}
	if (qms_store_reserve(shared->store, &identity, keys, 4, QMC_NS_PER_S, entries, &grant) !=
	    QMLA_OK)
		return;
	for (int i = 0; i < 4; i++) {
		uint64_t token;

		if (entries[i].status != QMLA_OK)
			continue;
		if (random_next(&w->random) % 8 == 0) {
			if (random_next(&w->random) % 2)
				qms_store_abort(shared->store, entries[i].ticket);
			continue; /* or left to expire */
		}
		if (qms_store_access_begin(shared->store, true, 0, entries[i].offset,
					   sizeof(struct stamp), &grant.capability,
					   &token) != QMLA_OK)
			continue;
		memcpy(shared->base + entries[i].offset,
		       &(struct stamp){numbers[i], entries[i].generation}, sizeof(struct stamp));
		qms_store_access_end(shared->store, token);
		if (qms_store_commit(shared->store, entries[i].ticket, numbers[i]) == QMLA_OK)
			atomic_fetch_add(&shared->writes, 1);
	}
}

static void read_some(struct worker *w)
{
	struct shared *shared = w->shared;
	struct qms_identity identity = identity_of(1);
	struct qms_lookup_entry entries[4];
	struct qms_key keys[4];
	uint64_t numbers[4];
	struct qms_grant grant;

	for (int i = 0; i < 4; i++) {
		numbers[i] = random_next(&w->random) % KEYS;
		keys[i] = key_of(numbers[i]);
	}
	if (qms_store_lookup(shared->store, &identity, keys, 4, QMC_NS_PER_S, false, entries,
			     &grant) != QMLA_OK)
		return;
	for (int i = 0; i < 4; i++) {
		struct stamp stamp;
		uint64_t token;

		if (entries[i].status != QMLA_OK ||
		    qms_store_access_begin(shared->store, false, 0, entries[i].offset,
					   sizeof(stamp), &grant.capability, &token) != QMLA_OK)
			continue;
		memcpy(&stamp, shared->base + entries[i].offset, sizeof(stamp));
		qms_store_access_end(shared->store, token);
		if (stamp.key != numbers[i] || stamp.generation != entries[i].generation ||
		    entries[i].digest != numbers[i])
			atomic_fetch_add(&shared->wrong, 1);
		atomic_fetch_add(&shared->reads, 1);
	}
	if (grant.lease && random_next(&w->random) % 16)
		qms_store_release(shared->store, grant.lease);
}

static void administer(struct worker *w)
{
	struct shared *shared = w->shared;
	struct qms_identity identity = identity_of(1);
	struct qms_key key = key_of(random_next(&w->random) % KEYS);

	switch (random_next(&w->random) % 4) {
	case 0:
		qms_store_remove(shared->store, &identity, &key);
		break;
	case 1:
		qms_store_report(shared->store, &identity, &key, 1);
		break;
	case 2:
		qms_store_pin(shared->store, &identity, &key, "stress", QMC_NS_PER_MS);
		break;
	default:
		qms_store_unpin(shared->store, &identity, &key, "stress");
	}
}

static void *work(void *argument)
{
	struct worker *w = argument;

	while (!atomic_load(&w->shared->stop)) {
		switch (random_next(&w->random) % 5) {
		case 0:
		case 1:
			write_some(w);
			break;
		case 2:
		case 3:
			read_some(w);
			break;
		default:
			administer(w);
		}
	}
	return NULL;
}

/* Time runs fast, so that leases and tickets left behind expire under their users' feet. */
static void *reap(void *argument)
{
	struct shared *shared = argument;

	while (!atomic_load(&shared->stop)) {
		qms_store_expire(shared->store, qmc_clock_now() + 990 * QMC_NS_PER_MS);
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	}
	return NULL;
}

static void *watch(void *argument)
{
	struct shared *shared = argument;
	struct qms_watcher *watcher;
	struct qms_event events[64];
	size_t count;

	if (qms_watcher_open(qms_store_watch_hub(shared->store), NULL, &watcher) != QMLA_OK)
		return NULL;
	while (!atomic_load(&shared->stop))
		qms_watcher_next(watcher, qmc_clock_after(QMC_NS_PER_MS), events, 64, &count);
	qms_watcher_close(watcher);
	return NULL;
}

static void run_round(struct shared *shared, uint64_t seed)
{
	struct worker workers[THREADS];
	pthread_t threads[THREADS + 2];

	atomic_store(&shared->stop, false);
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){shared, seed * 1000 + (uint64_t)i};
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	assert_int_equal(pthread_create(&threads[THREADS], NULL, reap, shared), 0);
	assert_int_equal(pthread_create(&threads[THREADS + 1], NULL, watch, shared), 0);
	qmc_clock_sleep_until(qmc_clock_after(150 * QMC_NS_PER_MS));
	atomic_store(&shared->stop, true);
	for (int i = 0; i < THREADS + 2; i++)
		pthread_join(threads[i], NULL);
}

static void everything_at_once_keeps_the_invariants(void **state)
{
	struct qms_store_callbacks callbacks = {.verify = verify};
	struct shared shared = {.store = store_small(SLOTS, &callbacks)};
	struct qms_store_stats stats;
	struct qms_identity identity = identity_of(1);
	void *base;
	uint64_t bytes;
	int fd;

	(void)state;
	qms_store_region(shared.store, 0, &base, &bytes, &fd);
	shared.base = base;
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		run_round(&shared, round);
		assert_true(store_sound(shared.store));
		assert_int_equal(atomic_load(&shared.wrong), 0);
	}
	/* It did do something, and at the end nothing has leaked. */
	assert_true(atomic_load(&shared.reads) > 1000);
	assert_true(atomic_load(&shared.writes) > 1000);
	qms_store_expire(shared.store, qmc_clock_now() + 3600 * QMC_NS_PER_S);
	qms_store_stats(shared.store, &stats);
	assert_int_equal(stats.leases + stats.tickets + stats.pins + stats.inflight, 0);
	assert_int_equal(stats.used_bytes, stats.blocks * SLOT_BYTES);
	for (uint64_t k = 10000; k < 10000 + SLOTS; k++) {
		struct qms_key key = key_of(k);
		struct qms_reserve_entry entry;
		struct qms_grant grant;

		assert_int_equal(
			qms_store_reserve(shared.store, &identity, &key, 1, 0, &entry, &grant),
			QMLA_OK);
		assert_int_equal(entry.status, QMLA_OK);
	}
	qms_store_destroy(shared.store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_at_once_keeps_the_invariants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
