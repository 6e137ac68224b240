/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/evict.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "server/store/ghost.h"
#include "server/store/types.h"

#define MAX_USES  3u
#define PROMOTION 2u /* uses that carry a slot from small to main */

enum queue_name { OUTSIDE, SMALL, MAIN, PARKED_SMALL, PARKED_MAIN };

struct node {
	uint64_t generation;
	uint64_t hash;
	uint32_t newer;
	uint32_t older;
	uint8_t queue;
	_Atomic uint8_t uses; /* relaxed: a lost count is harmless */
};

struct queue {
	uint32_t newest;
	uint32_t oldest;
	uint32_t count;
};

struct qms_evict {
	pthread_mutex_t lock;
	uint32_t slots;
	uint32_t small_target;
	uint32_t parked;
	struct queue queues[MAIN + 1]; /* [OUTSIDE] unused */
	struct node *nodes;
	struct qms_ghost *ghost;
};

qmla_status_t qms_evict_create(uint32_t slots, struct qms_evict **evict)
{
	struct qms_evict *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->nodes = calloc(slots, sizeof(*made->nodes));
	if (!made->nodes || qms_ghost_create(slots, &made->ghost) != QMLA_OK) {
		free(made->nodes);
		free(made);
		return QMLA_ERR_NO_MEMORY;
	}
	pthread_mutex_init(&made->lock, NULL);
	made->slots = slots;
	made->small_target = slots / 10 ? slots / 10 : 1;
	for (int q = SMALL; q <= MAIN; q++)
		made->queues[q].newest = made->queues[q].oldest = QMS_SLOT_NONE;
	*evict = made;
	return QMLA_OK;
}

void qms_evict_destroy(struct qms_evict *evict)
{
	if (!evict)
		return;
	pthread_mutex_destroy(&evict->lock);
	qms_ghost_destroy(evict->ghost);
	free(evict->nodes);
	free(evict);
}

static void push_newest(struct qms_evict *evict, uint8_t name, uint32_t slot)
{
	struct queue *queue = &evict->queues[name];
	struct node *node = &evict->nodes[slot];

	node->queue = name;
	node->newer = QMS_SLOT_NONE;
	node->older = queue->newest;
	if (queue->newest != QMS_SLOT_NONE)
		evict->nodes[queue->newest].newer = slot;
	else
		queue->oldest = slot;
	queue->newest = slot;
	queue->count++;
}

static void push_oldest(struct qms_evict *evict, uint8_t name, uint32_t slot)
{
	struct queue *queue = &evict->queues[name];
	struct node *node = &evict->nodes[slot];

	node->queue = name;
	node->older = QMS_SLOT_NONE;
	node->newer = queue->oldest;
	if (queue->oldest != QMS_SLOT_NONE)
		evict->nodes[queue->oldest].older = slot;
	else
		queue->newest = slot;
	queue->oldest = slot;
	queue->count++;
}

static void unlink_node(struct qms_evict *evict, uint32_t slot)
{
	struct node *node = &evict->nodes[slot];
	struct queue *queue = &evict->queues[node->queue];

	if (node->newer != QMS_SLOT_NONE)
		evict->nodes[node->newer].older = node->older;
	else
		queue->newest = node->older;
	if (node->older != QMS_SLOT_NONE)
		evict->nodes[node->older].newer = node->newer;
	else
		queue->oldest = node->newer;
	queue->count--;
	node->queue = OUTSIDE;
}

void qms_evict_insert(struct qms_evict *evict, uint32_t slot, uint64_t generation, uint64_t hash)
{
	struct node *node = &evict->nodes[slot];

	pthread_mutex_lock(&evict->lock);
	node->generation = generation;
	node->hash = hash;
	atomic_store_explicit(&node->uses, 0, memory_order_relaxed);
	push_newest(evict, qms_ghost_take(evict->ghost, hash) ? MAIN : SMALL, slot);
	pthread_mutex_unlock(&evict->lock);
}

void qms_evict_touch(struct qms_evict *evict, uint32_t slot)
{
	_Atomic uint8_t *uses = &evict->nodes[slot].uses;
	uint8_t now = atomic_load_explicit(uses, memory_order_relaxed);

	if (now < MAX_USES)
		atomic_store_explicit(uses, (uint8_t)(now + 1), memory_order_relaxed);
}

void qms_evict_prefetch(const struct qms_evict *evict, uint32_t slot)
{
	__builtin_prefetch(&evict->nodes[slot], 1);
}

void qms_evict_remove(struct qms_evict *evict, uint32_t slot)
{
	struct node *node = &evict->nodes[slot];

	pthread_mutex_lock(&evict->lock);
	if (node->queue == SMALL || node->queue == MAIN) {
		unlink_node(evict, slot);
	} else if (node->queue != OUTSIDE) {
		node->queue = OUTSIDE;
		evict->parked--;
	}
	pthread_mutex_unlock(&evict->lock);
}

/* True when @slot, the oldest of @name, was used enough to stay; then it has been moved. */
static bool second_chance(struct qms_evict *evict, uint8_t name, uint32_t slot)
{
	struct node *node = &evict->nodes[slot];
	uint8_t uses = atomic_load_explicit(&node->uses, memory_order_relaxed);

	if (name == SMALL ? uses < PROMOTION : uses == 0)
		return false;
	uses = name == SMALL ? 0 : (uint8_t)(uses - 1);
	atomic_store_explicit(&node->uses, uses, memory_order_relaxed);
	unlink_node(evict, slot);
	push_newest(evict, MAIN, slot);
	return true;
}

bool qms_evict_next(struct qms_evict *evict, struct qms_evict_candidate *candidate)
{
	const struct queue *small = &evict->queues[SMALL];
	const struct queue *main_queue = &evict->queues[MAIN];
	bool found = false;

	pthread_mutex_lock(&evict->lock);
	for (uint32_t chances = 0; !found; chances++) {
		uint8_t name =
			small->count > evict->small_target || main_queue->count == 0 ? SMALL : MAIN;
		uint32_t slot = evict->queues[name].oldest;

		if (slot == QMS_SLOT_NONE)
			break;
		/* Past the bound the oldest goes even if it was used: progress is worth more. */
		if (chances < QMS_EVICT_CHANCES && second_chance(evict, name, slot))
			continue;
		*candidate = (struct qms_evict_candidate){slot, name == SMALL,
							  evict->nodes[slot].generation,
							  evict->nodes[slot].hash};
		unlink_node(evict, slot);
		found = true;
	}
	pthread_mutex_unlock(&evict->lock);
	return found;
}

void qms_evict_park(struct qms_evict *evict, const struct qms_evict_candidate *candidate)
{
	pthread_mutex_lock(&evict->lock);
	evict->nodes[candidate->slot].queue = candidate->young ? PARKED_SMALL : PARKED_MAIN;
	evict->parked++;
	pthread_mutex_unlock(&evict->lock);
}

void qms_evict_unpark(struct qms_evict *evict, uint32_t slot)
{
	struct node *node = &evict->nodes[slot];

	pthread_mutex_lock(&evict->lock);
	if (node->queue == PARKED_SMALL || node->queue == PARKED_MAIN) {
		evict->parked--;
		push_oldest(evict, node->queue == PARKED_SMALL ? SMALL : MAIN, slot);
	}
	pthread_mutex_unlock(&evict->lock);
}

void qms_evict_forget(struct qms_evict *evict, const struct qms_evict_candidate *candidate)
{
	if (!candidate->young)
		return;
	pthread_mutex_lock(&evict->lock);
	qms_ghost_add(evict->ghost, candidate->hash);
	pthread_mutex_unlock(&evict->lock);
}

void qms_evict_count(struct qms_evict *evict, struct qms_evict_counts *counts)
{
	pthread_mutex_lock(&evict->lock);
	counts->small_slots = evict->queues[SMALL].count;
	counts->main_slots = evict->queues[MAIN].count;
	counts->parked_slots = evict->parked;
	pthread_mutex_unlock(&evict->lock);
}

static bool check_queue(const struct qms_evict *evict, uint8_t name, uint8_t *member)
{
	uint32_t seen = 0;
	uint32_t newer = QMS_SLOT_NONE;

	for (uint32_t slot = evict->queues[name].newest; slot != QMS_SLOT_NONE;
	     slot = evict->nodes[slot].older) {
		const struct node *node = &evict->nodes[slot];

		if (++seen > evict->queues[name].count || node->queue != name ||
		    node->newer != newer || member[slot])
			return false;
		member[slot] = 1;
		newer = slot;
	}
	return seen == evict->queues[name].count && evict->queues[name].oldest == newer;
}

bool qms_evict_check(struct qms_evict *evict, uint8_t *member, const char **why)
{
	uint32_t parked = 0;
	bool linked;

	pthread_mutex_lock(&evict->lock);
	linked = check_queue(evict, SMALL, member) && check_queue(evict, MAIN, member);
	for (uint32_t slot = 0; slot < evict->slots; slot++) {
		if (evict->nodes[slot].queue == PARKED_SMALL ||
		    evict->nodes[slot].queue == PARKED_MAIN) {
			parked++;
			linked = linked && !member[slot];
			member[slot] = 1;
		}
	}
	if (!linked)
		*why = "an eviction queue's links or length are wrong";
	else if (parked != evict->parked)
		*why = "the count of parked slots is wrong";
	linked = linked && parked == evict->parked;
	pthread_mutex_unlock(&evict->lock);
	return linked;
}
