/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/flights.h"

#include <pthread.h>
#include <stdlib.h>

/* Out of memory: the block is computed twice at worst. */
#define HASH_NONFATAL_OOM          1
#define uthash_nonfatal_oom(entry) ((entry)->owner = 0)
#include <uthash.h>

#define CANCEL_POLL_NS (50 * QMC_NS_PER_MS)

struct entry {
	qmla_key_t key;
	uint64_t owner;
	UT_hash_handle hh;
};

struct qmw_flights {
	pthread_mutex_t mutex;
	pthread_cond_t over; /* some flight left */
	struct entry *entries;
	uint64_t last_id;
};

qmla_status_t qmw_flights_create(struct qmw_flights **flights)
{
	struct qmw_flights *f = calloc(1, sizeof(*f));
	pthread_condattr_t attr;

	if (!f)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&f->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&f->over, &attr);
	pthread_condattr_destroy(&attr);
	*flights = f;
	return QMLA_OK;
}

void qmw_flights_destroy(struct qmw_flights *flights)
{
	if (!flights)
		return;
	pthread_cond_destroy(&flights->over);
	pthread_mutex_destroy(&flights->mutex);
	free(flights);
}

static struct entry *find(struct qmw_flights *flights, const qmla_key_t *key)
{
	struct entry *entry;

	HASH_FIND(hh, flights->entries, key, sizeof(*key), entry);
	return entry;
}

static void take(struct qmw_flights *flights, const qmla_key_t *key, uint64_t owner)
{
	struct entry *entry;

	if (find(flights, key))
		return;
	entry = calloc(1, sizeof(*entry));
	if (!entry)
		return;
	entry->key = *key;
	entry->owner = owner;
	HASH_ADD(hh, flights->entries, key, sizeof(entry->key), entry);
	if (entry->owner == 0)
		free(entry);
}

/* Sleeps until a flight left, the deadline, or the next look at `cancelled`. */
static void wait_over(struct qmw_flights *flights, qmc_time_t deadline)
{
	qmc_time_t until = qmc_clock_after(CANCEL_POLL_NS);
	struct timespec ts;

	if (deadline < until)
		until = deadline;
	ts.tv_sec = until / QMC_NS_PER_S;
	ts.tv_nsec = until % QMC_NS_PER_S;
	pthread_cond_timedwait(&flights->over, &flights->mutex, &ts);
}

bool qmw_flights_lead(struct qmw_flights *flights, const qmla_key_t *keys, uint32_t count,
		      qmc_time_t deadline, bool (*cancelled)(void *user), void *user,
		      struct qmw_flight *flight)
{
	const struct entry *entry;
	uint64_t owner;

	pthread_mutex_lock(&flights->mutex);
	entry = find(flights, keys);
	if (!entry) {
		*flight = (struct qmw_flight){++flights->last_id, keys, count};
		for (uint32_t i = 0; i < count; i++)
			take(flights, &keys[i], flight->id);
		pthread_mutex_unlock(&flights->mutex);
		return true;
	}
	owner = entry->owner;
	while (entry && entry->owner == owner && qmc_clock_left(deadline) > 0 && !cancelled(user)) {
		wait_over(flights, deadline);
		entry = find(flights, keys);
	}
	pthread_mutex_unlock(&flights->mutex);
	return false;
}

void qmw_flights_leave(struct qmw_flights *flights, struct qmw_flight *flight)
{
	if (flight->id == 0)
		return;
	pthread_mutex_lock(&flights->mutex);
	for (uint32_t i = 0; i < flight->count; i++) {
		struct entry *entry = find(flights, &flight->keys[i]);

		if (entry && entry->owner == flight->id) {
			HASH_DELETE(hh, flights->entries, entry);
			free(entry);
		}
	}
	pthread_cond_broadcast(&flights->over);
	pthread_mutex_unlock(&flights->mutex);
	*flight = (struct qmw_flight){0};
}
