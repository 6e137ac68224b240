/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/calls.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/status.h"

static qmc_time_t sooner(qmc_time_t a, qmc_time_t b)
{
	return a < b ? a : b;
}

static void start_call(struct qml_call *call, qmc_time_t deadline)
{
	qmc_time_t limit = qmc_clock_after(qml_node_settings(call->node)->call_ns);

	limit = sooner(limit, deadline);
	call->response = NULL;
	call->pending_ = NULL;
	call->sent = qmc_clock_now();
	call->given_ = limit - call->sent;
	call->status = qmp_channel_start(qml_node_channel(call->node), call->path, call->request,
					 call->response_type, limit, &call->pending_);
}

static void finish_call(struct qml_call *call)
{
	struct qmp_error error = {{0}};

	if (!call->pending_)
		return;
	call->status = qmp_pending_wait(call->pending_, &call->response, &error);
	call->pending_ = NULL;
	if (call->status != QMLA_OK) {
		call->response = NULL;
		qmc_debug("client", "node %s: %s: %s (%s)", qml_node_name(call->node), call->path,
			  qmla_status_text(call->status), error.detail);
	}
	qml_node_judge_call(call->node, call->status, call->given_, error.detail);
}

void qml_calls_run(struct qml_call *calls, size_t count, qmc_time_t deadline)
{
	for (size_t i = 0; i < count; i++)
		start_call(&calls[i], deadline);
	for (size_t i = 0; i < count; i++)
		finish_call(&calls[i]);
}

void qml_calls_release(struct qml_call *calls, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		qmp_message_free(calls[i].response);
		calls[i].response = NULL;
	}
}

#define TRANSPORTS_MAX 8

/* A Connect request; the layout and the names point into the settings. */
struct connect_request {
	Qmla__V1__ConnectRequest message;
	Qmla__V1__Layout layout;
	char *names[TRANSPORTS_MAX];
};

static void offer_transports(const struct qml_node *node, struct connect_request *request)
{
	const struct qml_settings *settings = qml_node_settings(node);
	const struct qmt_transport_ops *ops;
	size_t count = 0;

	for (size_t i = 0; (ops = qmt_transport_at(i)) != NULL && count < TRANSPORTS_MAX; i++) {
		const struct qmt_transport_ops *forced =
			settings->transport[0] ? qmt_transport_find(settings->transport) : ops;

		if (ops == forced && !qml_node_ruled_out(node, ops) &&
		    (!ops->usable || ops->usable()))
			request->names[count++] = (char *)(uintptr_t)ops->name;
	}
	request->message.transports = request->names;
	request->message.n_transports = count;
}

static void fill_connect(struct qml_node *node, struct connect_request *request)
{
	const struct qml_settings *settings = qml_node_settings(node);

	qmla__v1__connect_request__init(&request->message);
	qmla__v1__layout__init(&request->layout);
	request->layout.format = (uint32_t)settings->layout.format;
	request->layout.layers = settings->layout.layers;
	request->layout.content_dim = settings->layout.content_dim;
	request->layout.rope_dim = settings->layout.rope_dim;
	request->layout.page_tokens = QMK_PAGE_TOKENS;
	request->layout.version = QMK_FORMAT_VERSION;
	request->layout.fingerprint = settings->fingerprint;
	request->message.layout = &request->layout;
	request->message.identity.data = (uint8_t *)(uintptr_t)settings->identity.bytes;
	request->message.identity.len = sizeof(settings->identity.bytes);
	request->message.host_id = (char *)(uintptr_t)settings->host_id;
	offer_transports(node, request);
}

static void finish_connect(struct qml_call *call)
{
	if (call->status == QMLA_OK)
		call->status = qml_node_adopt(call->node,
					      (const Qmla__V1__ConnectResponse *)call->response);
	if (call->status != QMLA_OK)
		qmc_warn_limited("client", "node %s does not let us in: %s",
				 qml_node_name(call->node), qmla_status_text(call->status));
}

static void connect_all(struct qml_call *calls, struct connect_request *requests, size_t count,
			qmc_time_t deadline)
{
	if (count == 0)
		return;
	for (size_t i = 0; i < count; i++) {
		fill_connect(calls[i].node, &requests[i]);
		calls[i].path = "/qmla.v1.Cache/Connect";
		calls[i].request = &requests[i].message.base;
		calls[i].response_type = &qmla__v1__connect_response__descriptor;
	}
	deadline = sooner(deadline, qmc_clock_after(qml_node_settings(calls[0].node)->connect_ns));
	qml_calls_run(calls, count, deadline);
	for (size_t i = 0; i < count; i++)
		finish_connect(&calls[i]);
	qml_calls_release(calls, count);
}

void qml_calls_connect(struct qml_node *const *nodes, size_t count, qmc_time_t deadline)
{
	struct qml_call *calls = calloc(count, sizeof(*calls));
	struct connect_request *requests = calloc(count, sizeof(*requests));
	size_t wanted = 0;

	for (size_t i = 0; calls && requests && i < count; i++) {
		struct qml_link *link = qml_node_link(nodes[i]);

		if (!link && qml_node_usable(nodes[i]))
			calls[wanted++].node = nodes[i];
		qml_link_put(link);
	}
	connect_all(calls, requests, wanted, deadline);
	free(requests);
	free(calls);
}

qmla_status_t qml_calls_link(struct qml_node *node, qmc_time_t deadline, struct qml_link **link)
{
	struct connect_request request;
	struct qml_call call = {.node = node};

	*link = qml_node_link(node);
	if (*link && !qml_node_may_do_better(node, (*link)->ops))
		return QMLA_OK;
	qml_link_put(*link);
	if (!qml_node_usable(node))
		return qml_node_health(node);
	connect_all(&call, &request, 1, deadline);
	*link = qml_node_link(node);
	if (*link)
		return QMLA_OK;
	return call.status != QMLA_OK ? call.status : QMLA_ERR_UNAVAILABLE;
}

static qmla_status_t take_answer(struct qml_link *link, const Qmla__V1__ConnectResponse *response,
				 struct qmt_endpoint *endpoint, qmc_time_t deadline)
{
	struct qmt_offer answer;

	if (response->incarnation != link->incarnation)
		return QMLA_ERR_PEER_RESTARTED;
	if (strcmp(response->transport, link->ops->name) != 0 || response->answer.len == 0 ||
	    response->answer.len > sizeof(answer.bytes)) {
		qmc_warn_limited("client", "the node's answer to an offer of %s is none",
				 link->ops->name);
		return QMLA_ERR_FORMAT;
	}
	memcpy(answer.bytes, response->answer.data, response->answer.len);
	answer.length = (uint32_t)response->answer.len;
	return link->ops->endpoint_complete(endpoint, &answer, deadline);
}

/* Shows the endpoint's offer to the node and completes the endpoint with the answer. */
static qmla_status_t negotiate(struct qml_node *node, struct qml_link *link,
			       struct qmt_endpoint *endpoint, struct qmt_offer *offer,
			       qmc_time_t deadline)
{
	struct connect_request request;
	struct qml_call call = {
		.node = node,
		.path = "/qmla.v1.Cache/Connect",
		.request = &request.message.base,
		.response_type = &qmla__v1__connect_response__descriptor,
	};
	qmla_status_t status;

	fill_connect(node, &request);
	request.names[0] = (char *)(uintptr_t)link->ops->name;
	request.message.n_transports = 1;
	request.message.offer.data = offer->bytes;
	request.message.offer.len = offer->length;
	qml_calls_run(&call, 1, deadline);
	status = call.status;
	if (status == QMLA_OK)
		status = take_answer(link, (const Qmla__V1__ConnectResponse *)call.response,
				     endpoint, deadline);
	qml_calls_release(&call, 1);
	return status;
}

qmla_status_t qml_calls_connection(struct qml_node *node, struct qml_link *link,
				   qmc_time_t deadline, struct qml_connection *connection)
{
	struct qmt_endpoint *endpoint = NULL;
	struct qmt_offer offer;
	qmla_status_t status;

	if (qml_link_take(link, connection))
		return QMLA_OK;
	if (!link->ops->endpoint_offer)
		return qml_link_dial(link, deadline, connection);
	status = link->ops->endpoint_offer(&link->address, &endpoint, &offer);
	if (status != QMLA_OK)
		return status;
	status = negotiate(node, link, endpoint, &offer, deadline);
	if (status != QMLA_OK) {
		link->ops->endpoint_destroy(endpoint);
		return status;
	}
	return qml_link_equip(link, endpoint, connection);
}

void qml_calls_point_keys(const qmla_key_t *keys, const size_t *indices, size_t count,
			  ProtobufCBinaryData *binary)
{
	for (size_t i = 0; i < count; i++) {
		const qmla_key_t *key = &keys[indices ? indices[i] : i];

		binary[i].data = (uint8_t *)(uintptr_t)key->bytes;
		binary[i].len = sizeof(key->bytes);
	}
}

qmla_status_t qml_calls_code(Qmla__V1__Code code)
{
	int status = -(int)code;

	return qmc_status_is_known(status) ? (qmla_status_t)status : QMLA_ERR_INTERNAL;
}
