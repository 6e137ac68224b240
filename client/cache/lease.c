/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/lease.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/cache/calls.h"
#include "common/log.h"

#define RENEW_POLL_NS  (2 * QMC_NS_PER_MS) /* while an answer is on its way */
#define RENEW_AGAIN_NS (50 * QMC_NS_PER_MS)

struct qml_lease {
	struct qml_node *node;
	uint64_t incarnation;
	uint64_t number;
	uint32_t granted_ms;
	uint8_t capability[QMT_CAPABILITY_BYTES];
	pthread_mutex_t lock; /* what follows */
	qmc_time_t expires;
	qmc_time_t renew_at;
	qmc_time_t renew_sent;
	struct qmp_pending *pending;
	uint32_t renewals;
};

static void grant(struct qml_lease *lease, qmc_time_t sent, uint32_t lease_ms)
{
	int64_t ns = (int64_t)lease_ms * QMC_NS_PER_MS;

	lease->expires = sent + ns;
	lease->renew_at = sent + ns / 2;
}

qmla_status_t qml_lease_create(struct qml_node *node, const Qmla__V1__LookupResponse *response,
			       qmc_time_t sent, struct qml_lease **lease)
{
	struct qml_lease *self;

	if (response->capability.len != QMT_CAPABILITY_BYTES) {
		qmc_warn_limited("client", "node %s granted a lease without a capability",
				 qml_node_name(node));
		return QMLA_ERR_FORMAT;
	}
	self = calloc(1, sizeof(*self));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->node = node;
	self->incarnation = response->incarnation;
	self->number = response->lease;
	self->granted_ms = response->lease_ms;
	memcpy(self->capability, response->capability.data, QMT_CAPABILITY_BYTES);
	pthread_mutex_init(&self->lock, NULL);
	grant(self, sent, response->lease_ms);
	*lease = self;
	return QMLA_OK;
}

void qml_lease_release(struct qml_lease *lease, struct qml_background *background)
{
	Qmla__V1__ReleaseRequest request;

	if (!lease)
		return;
	if (lease->pending) {
		ProtobufCMessage *response = NULL;

		qmp_pending_cancel(lease->pending);
		(void)qmp_pending_wait(lease->pending, &response, NULL);
		qmp_message_free(response);
	}
	qmla__v1__release_request__init(&request);
	request.incarnation = lease->incarnation;
	request.leases = &lease->number;
	request.n_leases = 1;
	qml_background_send(background, lease->node, "/qmla.v1.Cache/Release", &request.base,
			    &qmla__v1__release_response__descriptor);
	pthread_mutex_destroy(&lease->lock);
	free(lease);
}

const uint8_t *qml_lease_capability(const struct qml_lease *lease)
{
	return lease->capability;
}

bool qml_lease_covers(struct qml_lease *lease, qmc_time_t at)
{
	bool covers;

	pthread_mutex_lock(&lease->lock);
	covers = at < lease->expires;
	pthread_mutex_unlock(&lease->lock);
	return covers;
}

uint32_t qml_lease_renewals(struct qml_lease *lease)
{
	uint32_t renewals;

	pthread_mutex_lock(&lease->lock);
	renewals = lease->renewals;
	pthread_mutex_unlock(&lease->lock);
	return renewals;
}

static void start_renewal(struct qml_lease *lease, qmc_time_t now)
{
	Qmla__V1__RenewRequest request;

	qmla__v1__renew_request__init(&request);
	request.incarnation = lease->incarnation;
	request.leases = &lease->number;
	request.n_leases = 1;
	request.lease_ms = lease->granted_ms;
	lease->renew_sent = now;
	if (qmp_channel_start(qml_node_channel(lease->node), "/qmla.v1.Cache/Renew", &request.base,
			      &qmla__v1__renew_response__descriptor, lease->expires,
			      &lease->pending) != QMLA_OK)
		lease->pending = NULL;
	lease->renew_at = now + RENEW_AGAIN_NS;
}

static void finish_renewal(struct qml_lease *lease, qmc_time_t now)
{
	ProtobufCMessage *message = NULL;
	const Qmla__V1__RenewResponse *response;
	qmla_status_t status = qmp_pending_wait(lease->pending, &message, NULL);

	lease->pending = NULL;
	response = (const Qmla__V1__RenewResponse *)message;
	if (status == QMLA_OK && response->n_codes != 1)
		status = QMLA_ERR_FORMAT;
	if (status == QMLA_OK)
		status = qml_calls_code(response->codes[0]);
	if (status == QMLA_OK) {
		grant(lease, lease->renew_sent, response->lease_ms);
		lease->renewals++;
	} else if (status == QMLA_ERR_LEASE_EXPIRED || status == QMLA_ERR_PEER_RESTARTED) {
		lease->expires = now; /* the node has said so: nothing more can be read */
		lease->renew_at = QMC_TIME_NEVER;
	} else {
		lease->renew_at = now + RENEW_AGAIN_NS;
	}
	qmp_message_free(message);
}

qmc_time_t qml_lease_tend(struct qml_lease *lease)
{
	qmc_time_t now = qmc_clock_now();
	qmc_time_t next;

	pthread_mutex_lock(&lease->lock);
	if (lease->pending && qmp_pending_done(lease->pending))
		finish_renewal(lease, now);
	if (!lease->pending && now >= lease->renew_at && now < lease->expires)
		start_renewal(lease, now);
	if (now >= lease->expires && !lease->pending)
		next = QMC_TIME_NEVER;
	else
		next = lease->pending ? now + RENEW_POLL_NS : lease->renew_at;
	pthread_mutex_unlock(&lease->lock);
	return next;
}
