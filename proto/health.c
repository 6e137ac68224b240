/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/health.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "proto/rpc_call.h"

#define WATCHERS_MAX 1024

typedef Grpc__Health__V1__HealthCheckRequest request_t;
typedef Grpc__Health__V1__HealthCheckResponse response_t;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus state_t;

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct watcher {
	struct watcher *next;
	struct qmp_call *call;
	bool known;
	bool sending;
	state_t told;
};

struct qmp_health {
	pthread_mutex_t lock; /* taken before a call's lock */
	bool serving, stopping;
	struct watcher *watchers;
	size_t watcher_count;
	struct qmp_call_hooks hooks;
	const struct qmp_service *services;
	size_t service_count;
};

/* True when a path "/name/…" starts with @p service. */
static bool path_names(const char *path, const char *service)
{
	size_t length = strlen(service);

	return path[0] == '/' && !strncmp(path + 1, service, length) && path[1 + length] == '/';
}

static bool health_knows(const struct qmp_health *health, const char *service)
{
	if (!service[0])
		return true;
	for (size_t i = 0; i < health->service_count; i++) {
		const struct qmp_service *s = &health->services[i];

		for (size_t j = 0; j < s->count; j++) {
			if (path_names(s->methods[j].path, service))
				return true;
		}
	}
	return false;
}

static state_t watcher_state(const struct qmp_health *health, const struct watcher *watcher)
{
	if (!watcher->known)
		return SERVICE_UNKNOWN;
	return health->serving && !health->stopping ? SERVING : NOT_SERVING;
}

/* Takes the watcher off the list and ends its stream. */
static void watcher_end(struct qmp_health *health, struct watcher *watcher, qmla_status_t status,
			const char *detail)
{
	struct watcher **link = &health->watchers;

	while (*link != watcher)
		link = &(*link)->next;
	*link = watcher->next;
	health->watcher_count--;
	qmp_call_fail(watcher->call, status, "%s", detail);
	free(watcher);
}

/* Brings one watcher up to date; called with the lock held, may free the watcher. */
static void watcher_advance(struct qmp_health *health, struct watcher *watcher, bool first)
{
	response_t response;
	state_t state = watcher_state(health, watcher);

	if (watcher->sending)
		return; /* the sent hook comes back here */
	if (first || state != watcher->told) {
		grpc__health__v1__health_check_response__init(&response);
		response.status = state;
		watcher->told = state;
		watcher->sending = true;
		if (qmp_call_send_now(watcher->call, &response.base) != QMLA_OK)
			watcher_end(health, watcher, QMLA_ERR_CANCELLED, "the watcher is gone");
	} else if (health->stopping) {
		watcher_end(health, watcher, QMLA_ERR_DRAINING, "the server is shutting down");
	}
}

static struct watcher *watcher_find(struct qmp_health *health, const struct qmp_call *call)
{
	struct watcher *watcher = health->watchers;

	while (watcher && watcher->call != call)
		watcher = watcher->next;
	return watcher; /* NULL: it has just been ended */
}

static void on_sent(void *object, struct qmp_call *call, bool ok)
{
	struct qmp_health *health = object;
	struct watcher *watcher;

	pthread_mutex_lock(&health->lock);
	watcher = watcher_find(health, call);
	if (watcher) {
		watcher->sending = false;
		if (ok)
			watcher_advance(health, watcher, false);
		else
			watcher_end(health, watcher, QMLA_ERR_CANCELLED, "the watcher is gone");
	}
	pthread_mutex_unlock(&health->lock);
}

static void on_cancelled(void *object, struct qmp_call *call)
{
	struct qmp_health *health = object;
	struct watcher *watcher;

	pthread_mutex_lock(&health->lock);
	watcher = watcher_find(health, call);
	if (watcher)
		watcher_end(health, watcher, QMLA_ERR_CANCELLED, "the watcher is gone");
	pthread_mutex_unlock(&health->lock);
}

static void handle_check(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct qmp_health *health = object;
	const request_t *request = (const request_t *)message;
	response_t response;

	if (!health_knows(health, request->service)) {
		qmp_call_fail(call, QMLA_ERR_NOT_FOUND, "no service %.100s here", request->service);
		return;
	}
	grpc__health__v1__health_check_response__init(&response);
	pthread_mutex_lock(&health->lock);
	response.status = health->serving && !health->stopping ? SERVING : NOT_SERVING;
	pthread_mutex_unlock(&health->lock);
	qmp_call_reply(call, &response.base);
}

static void handle_watch(void *object, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct qmp_health *health = object;
	const request_t *request = (const request_t *)message;
	struct watcher *watcher = NULL;

	pthread_mutex_lock(&health->lock);
	if (health->watcher_count < WATCHERS_MAX)
		watcher = calloc(1, sizeof(*watcher));
	if (watcher) {
		watcher->call = call;
		watcher->known = health_knows(health, request->service);
		watcher->next = health->watchers;
		health->watchers = watcher;
		health->watcher_count++;
		call->hooks = &health->hooks;
		watcher_advance(health, watcher, true);
	} else {
		qmp_call_fail(call, QMLA_ERR_RESOURCE_EXHAUSTED,
			      "%d health watchers already: use Check", WATCHERS_MAX);
	}
	pthread_mutex_unlock(&health->lock);
}

const struct qmp_method qmp_health_methods[QMP_HEALTH_METHODS] = {
	{"/grpc.health.v1.Health/Check", QMP_UNARY,
	 &grpc__health__v1__health_check_request__descriptor, handle_check},
	{"/grpc.health.v1.Health/Watch", QMP_SERVER_STREAM,
	 &grpc__health__v1__health_check_request__descriptor, handle_watch},
};

qmla_status_t qmp_health_create(const struct qmp_service *services, size_t count,
				struct qmp_health **health)
{
	struct qmp_health *h = calloc(1, sizeof(*h));

	if (!h)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&h->lock, NULL);
	h->services = services;
	h->service_count = count;
	h->hooks = (struct qmp_call_hooks){.sent = on_sent, .cancelled = on_cancelled, .object = h};
	*health = h;
	return QMLA_OK;
}

void qmp_health_destroy(struct qmp_health *health)
{
	if (!health)
		return;
	pthread_mutex_destroy(&health->lock);
	free(health);
}

static void health_advance_all(struct qmp_health *health)
{
	for (struct watcher *watcher = health->watchers, *next; watcher; watcher = next) {
		next = watcher->next;
		watcher_advance(health, watcher, false);
	}
}

void qmp_health_set(struct qmp_health *health, bool serving)
{
	pthread_mutex_lock(&health->lock);
	health->serving = serving;
	health_advance_all(health);
	pthread_mutex_unlock(&health->lock);
}

void qmp_health_stop(struct qmp_health *health)
{
	pthread_mutex_lock(&health->lock);
	health->stopping = true;
	health_advance_all(health);
	pthread_mutex_unlock(&health->lock);
}
