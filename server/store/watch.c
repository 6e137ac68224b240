/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct qms_watcher {
	struct qms_watch_hub *hub;
	struct qms_watcher *next;
	struct qms_identity identity;
	bool all;
	bool lost;
	pthread_cond_t wake;
	uint32_t head; /* of the oldest event */
	uint32_t count;
	struct qms_event ring[];
};

struct qms_watch_hub {
	pthread_mutex_t lock; /* guards all below and every watcher */
	struct qms_watcher *first;
	uint32_t limit;
	uint32_t ring;
	bool stopped;
	uint64_t lost;
	_Atomic uint32_t watchers; /* written under the lock; read without, to skip it when 0 */
};

qmla_status_t qms_watch_hub_create(uint32_t watchers, uint32_t ring, struct qms_watch_hub **hub)
{
	struct qms_watch_hub *made = calloc(1, sizeof(*made));

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&made->lock, NULL);
	made->limit = watchers;
	made->ring = ring;
	*hub = made;
	return QMLA_OK;
}

void qms_watch_hub_destroy(struct qms_watch_hub *hub)
{
	if (!hub)
		return;
	pthread_mutex_destroy(&hub->lock);
	free(hub);
}

static void push(struct qms_watch_hub *hub, struct qms_watcher *watcher,
		 const struct qms_event *event)
{
	if (watcher->lost)
		return;
	if (watcher->count == hub->ring) {
		watcher->lost = true;
		watcher->count = 0;
		hub->lost++;
	} else {
		watcher->ring[(watcher->head + watcher->count++) % hub->ring] = *event;
	}
	pthread_cond_signal(&watcher->wake);
}

void qms_watch_publish(struct qms_watch_hub *hub, enum qms_event_kind kind,
		       const struct qms_identity *identity, const struct qms_key *key)
{
	struct qms_event event;

	/*
	 * Acquire pairs with the release in open: a watcher that opened before it
	 * took a shard's lock for its snapshot is seen by whoever takes that lock next.
	 */
	if (atomic_load_explicit(&hub->watchers, memory_order_acquire) == 0)
		return;
	event = (struct qms_event){kind, *key, *identity};
	pthread_mutex_lock(&hub->lock);
	for (struct qms_watcher *w = hub->first; w; w = w->next) {
		if (w->all || memcmp(&w->identity, identity, sizeof(*identity)) == 0)
			push(hub, w, &event);
	}
	pthread_mutex_unlock(&hub->lock);
}

void qms_watch_hub_stop(struct qms_watch_hub *hub)
{
	pthread_mutex_lock(&hub->lock);
	hub->stopped = true;
	for (struct qms_watcher *w = hub->first; w; w = w->next)
		pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&hub->lock);
}

void qms_watch_hub_resume(struct qms_watch_hub *hub)
{
	pthread_mutex_lock(&hub->lock);
	hub->stopped = false;
	pthread_mutex_unlock(&hub->lock);
}

static struct qms_watcher *watcher_new(struct qms_watch_hub *hub,
				       const struct qms_identity *identity)
{
	struct qms_watcher *made = calloc(1, sizeof(*made) + hub->ring * sizeof(made->ring[0]));
	pthread_condattr_t attributes;

	if (!made)
		return NULL;
	made->hub = hub;
	made->all = identity == NULL;
	if (identity)
		made->identity = *identity;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&made->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	return made;
}

qmla_status_t qms_watcher_open(struct qms_watch_hub *hub, const struct qms_identity *identity,
			       struct qms_watcher **watcher)
{
	struct qms_watcher *made = watcher_new(hub, identity);
	qmla_status_t status = QMLA_OK;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_lock(&hub->lock);
	if (hub->stopped)
		status = QMLA_ERR_DRAINING;
	else if (atomic_load_explicit(&hub->watchers, memory_order_relaxed) >= hub->limit)
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
	if (status == QMLA_OK) {
		made->next = hub->first;
		hub->first = made;
		atomic_fetch_add_explicit(&hub->watchers, 1, memory_order_release);
	}
	pthread_mutex_unlock(&hub->lock);
	if (status != QMLA_OK) {
		pthread_cond_destroy(&made->wake);
		free(made);
		return status;
	}
	*watcher = made;
	return QMLA_OK;
}

void qms_watcher_close(struct qms_watcher *watcher)
{
	struct qms_watcher **link;

	if (!watcher)
		return;
	pthread_mutex_lock(&watcher->hub->lock);
	for (link = &watcher->hub->first; *link != watcher; link = &(*link)->next)
		;
	*link = watcher->next;
	atomic_fetch_sub_explicit(&watcher->hub->watchers, 1, memory_order_relaxed);
	pthread_mutex_unlock(&watcher->hub->lock);
	pthread_cond_destroy(&watcher->wake);
	free(watcher);
}

static bool wait_for_news(struct qms_watcher *watcher, qmc_time_t deadline)
{
	struct timespec until = {.tv_sec = (time_t)(deadline / QMC_NS_PER_S),
				 .tv_nsec = (long)(deadline % QMC_NS_PER_S)};

	while (watcher->count == 0 && !watcher->lost && !watcher->hub->stopped) {
		int rc = deadline == QMC_TIME_NEVER
				 ? pthread_cond_wait(&watcher->wake, &watcher->hub->lock)
				 : pthread_cond_timedwait(&watcher->wake, &watcher->hub->lock,
							  &until);
		if (rc == ETIMEDOUT)
			return false;
	}
	return true;
}

static size_t take(struct qms_watcher *watcher, struct qms_event *events, size_t max)
{
	size_t taken = 0;

	while (taken < max && watcher->count > 0) {
		events[taken++] = watcher->ring[watcher->head];
		watcher->head = (watcher->head + 1) % watcher->hub->ring;
		watcher->count--;
	}
	return taken;
}

qmla_status_t qms_watcher_next(struct qms_watcher *watcher, qmc_time_t deadline,
			       struct qms_event *events, size_t max, size_t *count)
{
	struct qms_watch_hub *hub = watcher->hub;
	qmla_status_t status = QMLA_OK;

	pthread_mutex_lock(&hub->lock);
	if (!wait_for_news(watcher, deadline)) {
		status = QMLA_ERR_DEADLINE;
	} else if (hub->stopped) {
		status = QMLA_ERR_CANCELLED;
	} else if (watcher->lost) {
		watcher->lost = false;
		watcher->head = 0;
		status = QMLA_ERR_STALE;
	} else {
		*count = take(watcher, events, max);
	}
	pthread_mutex_unlock(&hub->lock);
	return status;
}

uint32_t qms_watch_hub_watchers(struct qms_watch_hub *hub)
{
	return atomic_load_explicit(&hub->watchers, memory_order_relaxed);
}

uint64_t qms_watch_hub_lost(struct qms_watch_hub *hub)
{
	uint64_t lost;

	pthread_mutex_lock(&hub->lock);
	lost = hub->lost;
	pthread_mutex_unlock(&hub->lock);
	return lost;
}
