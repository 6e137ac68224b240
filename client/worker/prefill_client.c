/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/prefill_client.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "proto/rpc_client.h"
#include "qmla/v1/worker.pb-c.h"

#define COMPONENT        "prefill"
#define PROBE_TIMEOUT_NS (500 * QMC_NS_PER_MS)

struct qmw_prefill_client {
	char *address;
	qmla_identity_t identity;
	struct qmp_channel *channel;
	int64_t probe_interval_ns;
	pthread_t prober;
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	bool stopping;
	_Atomic bool left_out; /* written under the mutex, read freely: only a hint */
};

struct qmw_prefill_call {
	struct qmw_prefill_client *client;
	struct qmp_pending *pending;
};

static void probe_pause(struct qmw_prefill_client *client)
{
	qmc_time_t until = qmc_clock_after(client->probe_interval_ns);
	struct timespec ts = {.tv_sec = until / QMC_NS_PER_S, .tv_nsec = until % QMC_NS_PER_S};

	while (!client->stopping && pthread_cond_timedwait(&client->wake, &client->mutex, &ts) == 0)
		continue;
}

static void probe_once(struct qmw_prefill_client *client)
{
	qmla_status_t status;

	pthread_mutex_unlock(&client->mutex);
	status = qmp_health_check(client->channel, "", qmc_clock_after(PROBE_TIMEOUT_NS));
	pthread_mutex_lock(&client->mutex);
	if (status != QMLA_OK)
		return;
	atomic_store_explicit(&client->left_out, false, memory_order_relaxed);
	qmc_info(COMPONENT, "prefill worker %s answers again", client->address);
}

/* Sleeps while all is well; asks at intervals while the peer is left out. */
static void *probe_thread(void *argument)
{
	struct qmw_prefill_client *client = argument;

	pthread_setname_np(pthread_self(), "qmla-probe");
	pthread_mutex_lock(&client->mutex);
	while (!client->stopping) {
		if (!atomic_load_explicit(&client->left_out, memory_order_relaxed)) {
			pthread_cond_wait(&client->wake, &client->mutex);
			continue;
		}
		probe_pause(client);
		if (!client->stopping)
			probe_once(client);
	}
	pthread_mutex_unlock(&client->mutex);
	return NULL;
}

static void leave_out(struct qmw_prefill_client *client, const char *why)
{
	pthread_mutex_lock(&client->mutex);
	if (!atomic_exchange_explicit(&client->left_out, true, memory_order_relaxed)) {
		qmc_warn(COMPONENT, "prefill worker %s is left out: %s", client->address, why);
		pthread_cond_signal(&client->wake);
	}
	pthread_mutex_unlock(&client->mutex);
}

static void sync_init(struct qmw_prefill_client *client)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&client->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&client->wake, &attr);
	pthread_condattr_destroy(&attr);
}

qmla_status_t qmw_prefill_client_create(const char *address, const struct qmp_tls *tls,
					const qmla_identity_t *identity, int64_t probe_interval_ns,
					struct qmw_prefill_client **client)
{
	struct qmp_channel_config config = {.target = address, .tls = tls};
	struct qmw_prefill_client *c = calloc(1, sizeof(*c));
	qmla_status_t status;

	if (!c)
		return QMLA_ERR_NO_MEMORY;
	c->identity = *identity;
	c->probe_interval_ns = probe_interval_ns;
	c->address = strdup(address);
	status = c->address ? qmp_channel_create(&config, &c->channel) : QMLA_ERR_NO_MEMORY;
	if (status != QMLA_OK)
		goto err_free;
	sync_init(c);
	if (pthread_create(&c->prober, NULL, probe_thread, c) != 0) {
		qmc_error(COMPONENT, "cannot start the probing thread");
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
		goto err_sync;
	}
	*client = c;
	return QMLA_OK;

err_sync:
	pthread_cond_destroy(&c->wake);
	pthread_mutex_destroy(&c->mutex);
	qmp_channel_destroy(c->channel);
err_free:
	free(c->address);
	free(c);
	return status;
}

void qmw_prefill_client_destroy(struct qmw_prefill_client *client)
{
	if (!client)
		return;
	pthread_mutex_lock(&client->mutex);
	client->stopping = true;
	pthread_cond_signal(&client->wake);
	pthread_mutex_unlock(&client->mutex);
	pthread_join(client->prober, NULL);
	pthread_cond_destroy(&client->wake);
	pthread_mutex_destroy(&client->mutex);
	qmp_channel_destroy(client->channel);
	free(client->address);
	free(client);
}

const char *qmw_prefill_client_address(const struct qmw_prefill_client *client)
{
	return client->address;
}

bool qmw_prefill_client_usable(const struct qmw_prefill_client *client)
{
	return !atomic_load_explicit(&client->left_out, memory_order_relaxed);
}

qmla_status_t qmw_prefill_call_start(struct qmw_prefill_client *client, const uint32_t *tokens,
				     uint32_t count, const char *name_space, qmc_time_t deadline,
				     struct qmw_prefill_call **call)
{
	Qmla__V1__PrefillRequest request;
	struct qmw_prefill_call *c = malloc(sizeof(*c));
	qmla_status_t status;

	if (!c)
		return QMLA_ERR_NO_MEMORY;
	/* Packed before start returns: the message only borrows. */
	qmla__v1__prefill_request__init(&request);
	request.n_tokens = count;
	request.tokens = (uint32_t *)(uintptr_t)tokens;
	request.cache_namespace = (char *)(uintptr_t)name_space;
	request.identity.data = client->identity.bytes;
	request.identity.len = sizeof(client->identity.bytes);
	c->client = client;
	status = qmp_channel_start(client->channel, "/qmla.v1.Worker/Prefill", &request.base,
				   &qmla__v1__prefill_response__descriptor, deadline, &c->pending);
	if (status != QMLA_OK) {
		free(c);
		return status;
	}
	*call = c;
	return QMLA_OK;
}

bool qmw_prefill_call_done(const struct qmw_prefill_call *call)
{
	return qmp_pending_done(call->pending);
}

qmla_status_t qmw_prefill_call_check(struct qmw_prefill_call *call, int64_t timeout_ns)
{
	qmla_status_t status =
		qmp_health_check(call->client->channel, "", qmc_clock_after(timeout_ns));

	if (status != QMLA_OK)
		leave_out(call->client, "it does not answer a health check");
	return status;
}

/* Is it the peer that is unwell, rather than this one request? */
static bool peer_failed(qmla_status_t status)
{
	return status == QMLA_ERR_UNAVAILABLE || status == QMLA_ERR_DRAINING ||
	       status == QMLA_ERR_UNSUPPORTED || status == QMLA_ERR_IDENTITY_MISMATCH;
}

static void reply_fill(const Qmla__V1__PrefillResponse *response, struct qmw_prefill_reply *reply)
{
	reply->blocks_hit = response->blocks_hit;
	reply->blocks_computed = response->blocks_computed;
	reply->blocks_published = response->blocks_published;
	snprintf(reply->note, sizeof(reply->note), "%s",
		 response->n_notes > 0 ? response->notes[0] : "");
}

qmla_status_t qmw_prefill_call_end(struct qmw_prefill_call *call, bool cancel,
				   struct qmw_prefill_reply *reply)
{
	ProtobufCMessage *message = NULL;
	struct qmp_error error = {.detail = ""};
	qmla_status_t status;

	memset(reply, 0, sizeof(*reply));
	if (cancel)
		qmp_pending_cancel(call->pending);
	status = qmp_pending_wait(call->pending, &message, &error);
	if (status == QMLA_OK) {
		reply_fill((const Qmla__V1__PrefillResponse *)message, reply);
		qmp_message_free(message);
	} else {
		snprintf(reply->note, sizeof(reply->note), "%s",
			 error.detail[0] ? error.detail : qmla_status_text(status));
		if (!cancel && peer_failed(status))
			leave_out(call->client, reply->note);
	}
	free(call);
	return status;
}
