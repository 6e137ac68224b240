/* SPDX-License-Identifier: Apache-2.0 */
/* Offer and complete: how an endpoint's queue pairs come up. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/log.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/endpoint_internal.h"

#define SENDS_MAILED (QMT_WRITES_MAX * 2 + 8)
#define STRAGGLE_NS  (300 * QMC_NS_PER_MS) /* that other rails get once one is up */
#define LOOK_MS      1

static const struct qmt_qp_limits limits = {.sends = QMT_RING, .receives = QMT_RECEIVES};

/* Peers reach no memory by this: it lets the server's pings, which carry nothing, through. */
#define ACCESS IBV_ACCESS_REMOTE_WRITE

static qmla_status_t open_rail(struct qmt_verbs_endpoint *endpoint, size_t index)
{
	struct qmt_verbs_rail *rail = &endpoint->rails[index];
	struct qmt_domain *domain = endpoint->domain;
	qmla_status_t status;

	rail->port = index;
	rail->watched.port = &domain->ports[index];
	rail->watched.wake_fd = endpoint->wake_fd;
	status = qmt_qp_create(&domain->ports[index], domain->pds[index],
			       ACCESS | IBV_ACCESS_REMOTE_READ, &limits, NULL, rail, &rail->qp);
	if (status != QMLA_OK)
		return status;
	rail->watched.state = rail->qp.state;
	qmt_monitor_add(domain->monitor, &rail->watched);
	rail->used = true;
	status = qmt_mail_create(domain->api, domain->pds[index], SENDS_MAILED, QMT_RECEIVES,
				 &rail->mail);
	return status == QMLA_OK ? qmt_verbs_listen(rail) : status;
}

static qmla_status_t open_rails(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_offer *offer)
{
	qmla_status_t status = QMLA_ERR_UNAVAILABLE;

	/* The offer's rails are the domain's ports that are up, in order. */
	for (size_t i = 0; i < endpoint->domain->count; i++) {
		struct qmt_port_state state;
		qmla_status_t opened = qmt_port_query(&endpoint->domain->ports[i], &state);

		if (opened == QMLA_OK)
			opened = open_rail(endpoint, i);
		if (opened == QMLA_OK)
			offer->addresses[offer->rails++] = endpoint->rails[i].qp.self;
		else
			status = opened;
		if (opened != QMLA_OK && endpoint->rails[i].used)
			return opened;
	}
	return offer->rails > 0 ? QMLA_OK : status;
}

static qmla_status_t prepare(struct qmt_verbs_endpoint *endpoint,
			     const struct qmt_server_address *address,
			     struct qmt_verbs_offer *offer)
{
	char text[QMT_ADDRESS_TEXT_MAX];
	qmla_status_t status = qmt_address_decode(address, QMT_KIND_VERBS, &endpoint->server, text);

	if (status != QMLA_OK) {
		qmc_error("verbs", "not the address of a verbs server: %s",
			  qmla_status_text(status));
		return status;
	}
	status = qmc_random_bytes(endpoint->connection, sizeof(endpoint->connection));
	if (status != QMLA_OK)
		return status;
	endpoint->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (endpoint->wake_fd < 0)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	status = qmt_domain_get(&endpoint->domain);
	if (status != QMLA_OK)
		return status;
	offer->server = endpoint->server;
	memcpy(offer->connection, endpoint->connection, QMT_CONNECTION_BYTES);
	return open_rails(endpoint, offer);
}

qmla_status_t qmt_verbs_endpoint_offer(const struct qmt_server_address *address,
				       struct qmt_endpoint **out, struct qmt_offer *blob)
{
	struct qmt_verbs_endpoint *endpoint = calloc(1, sizeof(*endpoint));
	struct qmt_verbs_offer offer = {0};
	qmla_status_t status;

	if (!endpoint)
		return QMLA_ERR_NO_MEMORY;
	endpoint->wake_fd = -1;
	qmt_queue_init(&endpoint->queue);
	status = prepare(endpoint, address, &offer);
	if (status != QMLA_OK) {
		qmt_verbs_endpoint_destroy((struct qmt_endpoint *)endpoint);
		return status;
	}
	qmt_verbs_offer_encode(&offer, blob);
	*out = (struct qmt_endpoint *)endpoint;
	return QMLA_OK;
}

/* ---- complete ---- */

/* The @offered-th rail of the offer. */
static struct qmt_verbs_rail *find_rail(struct qmt_verbs_endpoint *endpoint, size_t offered)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (endpoint->rails[i].used && offered-- == 0)
			return &endpoint->rails[i];
	}
	return NULL;
}

static qmla_status_t check_answer(struct qmt_verbs_endpoint *endpoint, const struct qmt_offer *blob)
{
	qmla_status_t status = qmt_verbs_answer_decode(blob, &endpoint->answer);

	if (status != QMLA_OK) {
		qmc_warn_limited("verbs", "the server's answer makes no sense");
		return status;
	}
	if (endpoint->answer.incarnation != endpoint->server.incarnation)
		return QMLA_ERR_PEER_RESTARTED;
	return memcmp(endpoint->answer.connection, endpoint->connection, QMT_CONNECTION_BYTES) == 0
		       ? QMLA_OK
		       : QMLA_ERR_FORMAT;
}

static void connect_rail(struct qmt_verbs_endpoint *endpoint, const struct qmt_answer_rail *answer)
{
	const struct qmt_message hello = {.kind = QMT_MESSAGE_HELLO,
					  .id = qmt_connection_number(endpoint->connection)};
	struct qmt_verbs_rail *rail = find_rail(endpoint, answer->offered);

	if (!rail)
		return;
	if (qmt_qp_connect(&rail->qp, &answer->address) != QMLA_OK) {
		rail->broken = true;
		return;
	}
	/* So many run, as many are ready to follow: the device never waits for this side. */
	rail->read_limit = qmt_qp_read_depth(&rail->qp, &answer->address);
	if (!rail->qp.port->local_alone) /* Soft-RoCE comes to a stop over what has to wait */
		rail->read_limit *= 2;
	memcpy(rail->rkeys, answer->rkeys, sizeof(rail->rkeys));
	(void)qmt_verbs_tell(endpoint, rail, &hello);
}

static size_t count_up(const struct qmt_verbs_endpoint *endpoint, size_t *broken)
{
	size_t count = 0;

	*broken = 0;
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		count += endpoint->rails[i].up;
		*broken += endpoint->rails[i].broken;
	}
	return count;
}

/* Until every rail has been welcomed; one alone is enough when the others take long. */
static qmla_status_t await_welcome(struct qmt_verbs_endpoint *endpoint, qmc_time_t deadline)
{
	size_t wanted = endpoint->answer.rails, up = 0, broken = 0;

	while (endpoint->alive && up + broken < wanted && qmc_clock_now() < deadline) {
		size_t before = up;

		if (!qmt_verbs_poll(endpoint))
			(void)poll(NULL, 0, LOOK_MS);
		up = count_up(endpoint, &broken);
		if (up > before && before == 0 && qmc_clock_after(STRAGGLE_NS) < deadline)
			deadline = qmc_clock_after(STRAGGLE_NS);
	}
	if (!endpoint->alive)
		return QMLA_ERR_UNAVAILABLE;
	if (up == 0) {
		qmc_warn_limited("verbs", "no word comes back over any rail");
		return broken == wanted ? QMLA_ERR_UNAVAILABLE : QMLA_ERR_DEADLINE;
	}
	if (up < wanted)
		qmc_warn_limited("verbs", "%zu of %zu rails work", up, wanted);
	return QMLA_OK;
}

static void announce(const struct qmt_verbs_endpoint *endpoint)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		const struct qmt_verbs_rail *rail = &endpoint->rails[i];
		char text[QMT_DEVICE_NAME_MAX];

		if (!rail->up)
			continue;
		qmt_port_text(&rail->qp.state, text);
		qmc_debug("verbs", "connected through %s port %u, gid %u (%s), %u reads posted",
			  rail->qp.port->name, rail->qp.port->number, rail->qp.state.gid_index,
			  text, rail->read_limit);
	}
}

qmla_status_t qmt_verbs_endpoint_complete(struct qmt_endpoint *base, const struct qmt_offer *answer,
					  qmc_time_t deadline)
{
	struct qmt_verbs_endpoint *endpoint = qmt_verbs_of(base);
	qmla_status_t status;

	if (endpoint->connected)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = check_answer(endpoint, answer);
	if (status != QMLA_OK)
		return status;
	endpoint->connected = endpoint->alive = true;
	for (size_t i = 0; i < endpoint->answer.rails; i++)
		connect_rail(endpoint, &endpoint->answer.rail[i]);
	qmt_verbs_flush(endpoint);
	status = await_welcome(endpoint, deadline);
	if (status == QMLA_OK)
		announce(endpoint);
	return status;
}
