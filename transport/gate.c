/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/gate.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "common/log.h"
#include "transport/fences.h"

#define FLIGHT_BUCKETS 256

struct region {
	SLIST_ENTRY(region) link;
	uint64_t number;
	struct qmt_memory memory;
};

SLIST_HEAD(region_list, region);
LIST_HEAD(flight_list, qmt_flight);

struct qmt_gate {
	struct qmt_server_callbacks callbacks;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t ended;
	struct region_list regions; /* few, never removed: nodes stay valid unlocked */
	struct flight_list flights[FLIGHT_BUCKETS];
	struct qmt_fences *fences;
	unsigned fences_waiting;
	struct qmt_server_stats stats;
};

qmla_status_t qmt_gate_create(const struct qmt_server_callbacks *callbacks, struct qmt_gate **out)
{
	struct qmt_gate *gate = calloc(1, sizeof(*gate));

	if (!gate)
		return QMLA_ERR_NO_MEMORY;
	if (qmt_fences_create(&gate->fences) != QMLA_OK) {
		free(gate);
		return QMLA_ERR_NO_MEMORY;
	}
	gate->callbacks = *callbacks;
	pthread_mutex_init(&gate->lock, NULL);
	pthread_cond_init(&gate->ended, NULL);
	*out = gate;
	return QMLA_OK;
}

void qmt_gate_destroy(struct qmt_gate *gate)
{
	struct region *region;

	if (!gate)
		return;
	while ((region = SLIST_FIRST(&gate->regions)) != NULL) {
		SLIST_REMOVE_HEAD(&gate->regions, link);
		free(region);
	}
	pthread_cond_destroy(&gate->ended);
	pthread_mutex_destroy(&gate->lock);
	qmt_fences_destroy(gate->fences);
	free(gate);
}

static const struct region *region_find(const struct qmt_gate *gate, uint64_t number)
{
	const struct region *region;

	for (region = SLIST_FIRST(&gate->regions); region; region = SLIST_NEXT(region, link)) {
		if (region->number == number)
			return region;
	}
	return NULL;
}

qmla_status_t qmt_gate_register(struct qmt_gate *gate, const struct qmt_memory *memory,
				uint64_t number)
{
	struct region *region;
	bool taken;

	if (!memory->base || memory->bytes == 0 ||
	    memory->bytes > UINT64_MAX - (uint64_t)(uintptr_t)memory->base) {
		qmc_error("transport",
			  "region %" PRIu64 " has no memory or wraps the address space", number);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	region = calloc(1, sizeof(*region));
	if (!region)
		return QMLA_ERR_NO_MEMORY;
	region->number = number;
	region->memory = *memory;
	pthread_mutex_lock(&gate->lock);
	taken = region_find(gate, number) != NULL;
	if (!taken)
		SLIST_INSERT_HEAD(&gate->regions, region, link);
	pthread_mutex_unlock(&gate->lock);
	if (taken) {
		free(region);
		qmc_error("transport", "region number %" PRIu64 " is registered already", number);
		return QMLA_ERR_ALREADY_EXISTS;
	}
	return QMLA_OK;
}

static struct flight_list *bucket_of(struct qmt_gate *gate, const uint8_t *capability)
{
	return &gate->flights[qmt_capability_hash(capability) % FLIGHT_BUCKETS];
}

/* Takes @flight into the list; the lock is held. */
static qmla_status_t admit_locked(struct qmt_gate *gate, struct qmt_flight *flight)
{
	const struct qmt_access_request *request = &flight->request;
	const struct region *region = region_find(gate, request->region);

	if (!region)
		return QMLA_ERR_NOT_FOUND;
	/* In this order: offset + length may wrap. */
	if (request->length == 0 || request->length > region->memory.bytes ||
	    request->offset > region->memory.bytes - request->length)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (qmt_fences_has(gate->fences, request->capability))
		return QMLA_ERR_PERMISSION;
	flight->region = &region->memory;
	flight->memory = (uint8_t *)region->memory.base + request->offset;
	LIST_INSERT_HEAD(bucket_of(gate, request->capability), flight, link);
	return QMLA_OK;
}

/* Takes @flight out of the list and wakes whoever fences. */
static void remove_locked(struct qmt_gate *gate, struct qmt_flight *flight)
{
	LIST_REMOVE(flight, link);
	if (gate->fences_waiting)
		pthread_cond_broadcast(&gate->ended);
}

qmla_status_t qmt_gate_begin(struct qmt_gate *gate, struct qmt_flight *flight)
{
	qmla_status_t status;

	atomic_store_explicit(&flight->fenced, false, memory_order_relaxed);
	flight->token = 0;
	pthread_mutex_lock(&gate->lock);
	status = admit_locked(gate, flight);
	if (status != QMLA_OK)
		gate->stats.denied++;
	pthread_mutex_unlock(&gate->lock);
	if (status != QMLA_OK)
		return status;

	/* In the list before authorize: a fence that comes meanwhile waits for the outcome. */
	status = gate->callbacks.authorize(gate->callbacks.user, &flight->request, &flight->token);
	if (status != QMLA_OK) {
		pthread_mutex_lock(&gate->lock);
		gate->stats.denied++;
		remove_locked(gate, flight);
		pthread_mutex_unlock(&gate->lock);
	} else if (qmt_flight_is_fenced(flight)) {
		qmt_gate_end(gate, flight, QMLA_ERR_PERMISSION, 0);
		status = QMLA_ERR_PERMISSION;
	}
	return status;
}

void qmt_gate_end(struct qmt_gate *gate, struct qmt_flight *flight, qmla_status_t status,
		  uint64_t moved)
{
	bool read = flight->request.access == QMT_READ;

	gate->callbacks.finished(gate->callbacks.user, &flight->request, flight->token, status);
	pthread_mutex_lock(&gate->lock);
	if (read) {
		gate->stats.bytes_read += moved;
		gate->stats.reads += status == QMLA_OK;
	} else {
		gate->stats.bytes_written += moved;
		gate->stats.writes += status == QMLA_OK;
	}
	/* After finished: when a fence returns, the owner has been told of every end. */
	remove_locked(gate, flight);
	pthread_mutex_unlock(&gate->lock);
}

/* Tells every access under @capability to end; returns how many there are. */
static unsigned signal_locked(struct qmt_gate *gate, const uint8_t *capability)
{
	struct qmt_flight *flight = LIST_FIRST(bucket_of(gate, capability));
	unsigned count = 0;

	for (; flight; flight = LIST_NEXT(flight, link)) {
		if (memcmp(flight->request.capability, capability, QMT_CAPABILITY_BYTES) != 0)
			continue;
		count++;
		if (qmt_flight_is_fenced(flight))
			continue;
		/* Pairs with the acquire in qmt_flight_is_fenced. */
		atomic_store_explicit(&flight->fenced, true, memory_order_release);
		(void)eventfd_write(flight->wake_fd, 1);
	}
	return count;
}

void qmt_gate_fence(struct qmt_gate *gate, const uint8_t capability[QMT_CAPABILITY_BYTES])
{
	pthread_mutex_lock(&gate->lock);
	qmt_fences_add(gate->fences, capability);
	gate->fences_waiting++;
	while (signal_locked(gate, capability) > 0)
		pthread_cond_wait(&gate->ended, &gate->lock);
	gate->fences_waiting--;
	pthread_mutex_unlock(&gate->lock);
}

void qmt_gate_stats(struct qmt_gate *gate, struct qmt_server_stats *stats)
{
	uint64_t peers = stats->peers;

	pthread_mutex_lock(&gate->lock);
	*stats = gate->stats;
	pthread_mutex_unlock(&gate->lock);
	stats->peers = peers;
}
