/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/background.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "client/cache/calls.h"
#include "client/cache/thread.h"

#define OPEN_CALLS_MAX 1024
#define GRACE_NS       (100 * QMC_NS_PER_MS)
#define FIRST_PAUSE_NS (50 * QMC_NS_PER_MS)

struct open_call {
	struct open_call *next;
	struct qmp_pending *pending;
};

struct qml_background {
	struct qml_node *const *nodes;
	size_t count;
	pthread_t thread;
	pthread_mutex_t lock; /* what follows */
	pthread_cond_t changed;
	struct open_call *first, **last;
	size_t open;
	qmc_time_t probe_at;
	int64_t pause; /* between probes; grows up to the probe interval */
	bool stopping;
};

static void wait_for(struct open_call *call)
{
	ProtobufCMessage *response = NULL;

	(void)qmp_pending_wait(call->pending, &response, NULL);
	qmp_message_free(response);
	free(call);
}

/* True when some node is still left out. Any answer at all ends its exile (qml_node_judge). */
static bool probe_all(struct qml_background *self)
{
	struct qml_call *calls = calloc(self->count, sizeof(*calls));
	Qmla__V1__DescribeRequest request;
	size_t asked = 0;
	bool missing = false;

	if (!calls)
		return true;
	qmla__v1__describe_request__init(&request);
	for (size_t i = 0; i < self->count; i++) {
		if (qml_node_usable(self->nodes[i]))
			continue;
		calls[asked].node = self->nodes[i];
		calls[asked].path = "/qmla.v1.Cache/Describe";
		calls[asked].request = &request.base;
		calls[asked].response_type = &qmla__v1__describe_response__descriptor;
		asked++;
	}
	qml_calls_run(calls, asked, qmc_clock_after(qml_node_settings(self->nodes[0])->connect_ns));
	qml_calls_release(calls, asked);
	for (size_t i = 0; i < asked; i++)
		missing |= !qml_node_usable(calls[i].node);
	free(calls);
	return missing;
}

static struct open_call *pop(struct qml_background *self)
{
	struct open_call *call = self->first;

	self->first = call->next;
	if (!self->first)
		self->last = &self->first;
	self->open--;
	return call;
}

static void wait_for_work(struct qml_background *self)
{
	struct timespec at;

	if (self->probe_at == QMC_TIME_NEVER) {
		pthread_cond_wait(&self->changed, &self->lock);
		return;
	}
	at.tv_sec = self->probe_at / QMC_NS_PER_S;
	at.tv_nsec = self->probe_at % QMC_NS_PER_S;
	pthread_cond_timedwait(&self->changed, &self->lock, &at);
}

static int64_t sooner(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t longest_pause(const struct qml_background *self)
{
	return qml_node_settings(self->nodes[0])->probe_ns;
}

static void probe_if_due(struct qml_background *self)
{
	bool missing;

	if (qmc_clock_now() < self->probe_at)
		return;
	self->probe_at = QMC_TIME_NEVER; /* a node lost from here on sets it again */
	pthread_mutex_unlock(&self->lock);
	missing = probe_all(self);
	pthread_mutex_lock(&self->lock);
	if (missing) {
		self->pause = sooner(2 * self->pause, longest_pause(self));
		self->probe_at = qmc_clock_after(self->pause);
	}
}

static void *background_main(void *user)
{
	struct qml_background *self = user;

	pthread_mutex_lock(&self->lock);
	while (!self->stopping) {
		if (self->first) {
			struct open_call *call = pop(self);

			pthread_mutex_unlock(&self->lock);
			wait_for(call);
			pthread_mutex_lock(&self->lock);
		} else if (self->probe_at > qmc_clock_now()) {
			wait_for_work(self);
		}
		if (!self->stopping)
			probe_if_due(self);
	}
	pthread_mutex_unlock(&self->lock);
	return NULL;
}

qmla_status_t qml_background_create(struct qml_node *const *nodes, size_t count,
				    struct qml_background **background)
{
	struct qml_background *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->nodes = nodes;
	self->count = count;
	self->last = &self->first;
	self->probe_at = QMC_TIME_NEVER;
	pthread_mutex_init(&self->lock, NULL);
	qml_cond_init(&self->changed);
	status = qml_thread_start(&self->thread, background_main, self);
	if (status != QMLA_OK) {
		pthread_cond_destroy(&self->changed);
		pthread_mutex_destroy(&self->lock);
		free(self);
		return status;
	}
	*background = self;
	return QMLA_OK;
}

/* Lets a release that is on its way arrive, but waits for no dead node. */
static void wind_up(struct open_call *call, qmc_time_t grace_end)
{
	while (!qmp_pending_done(call->pending) && qmc_clock_now() < grace_end)
		qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
	qmp_pending_cancel(call->pending);
	wait_for(call);
}

void qml_background_destroy(struct qml_background *background)
{
	qmc_time_t grace_end = qmc_clock_after(GRACE_NS);

	if (!background)
		return;
	pthread_mutex_lock(&background->lock);
	background->stopping = true;
	pthread_cond_signal(&background->changed);
	pthread_mutex_unlock(&background->lock);
	pthread_join(background->thread, NULL);
	while (background->first)
		wind_up(pop(background), grace_end);
	pthread_cond_destroy(&background->changed);
	pthread_mutex_destroy(&background->lock);
	free(background);
}

void qml_background_wake(void *background)
{
	struct qml_background *self = background;

	pthread_mutex_lock(&self->lock);
	/* Soon at first: most who go away are back at once. */
	self->pause = sooner(FIRST_PAUSE_NS, longest_pause(self));
	self->probe_at = sooner(self->probe_at, qmc_clock_after(self->pause));
	pthread_cond_signal(&self->changed);
	pthread_mutex_unlock(&self->lock);
}

void qml_background_send(struct qml_background *background, struct qml_node *node, const char *path,
			 const ProtobufCMessage *request,
			 const ProtobufCMessageDescriptor *response_type)
{
	struct open_call *call;
	bool full;

	pthread_mutex_lock(&background->lock);
	full = background->open >= OPEN_CALLS_MAX;
	pthread_mutex_unlock(&background->lock);
	if (full || !qml_node_usable(node))
		return; /* leases and tickets end by themselves */
	call = calloc(1, sizeof(*call));
	if (!call)
		return;
	if (qmp_channel_start(qml_node_channel(node), path, request, response_type,
			      qmc_clock_after(qml_node_settings(node)->call_ns),
			      &call->pending) != QMLA_OK) {
		free(call);
		return;
	}
	pthread_mutex_lock(&background->lock);
	*background->last = call;
	background->last = &call->next;
	background->open++;
	pthread_cond_signal(&background->changed);
	pthread_mutex_unlock(&background->lock);
}
