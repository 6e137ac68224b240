/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client/cache/calls.h"
#include "client/cache/client.h"
#include "common/log.h"

union request {
	Qmla__V1__RemoveRequest remove;
	Qmla__V1__PinRequest pin;
	Qmla__V1__UnpinRequest unpin;
};

/* A command about keys that every node is asked to carry out. */
struct command {
	const char *path;
	const ProtobufCMessageDescriptor *response_type;
	/* Writes the request for these keys; returns its base. */
	const ProtobufCMessage *(*fill)(const struct command *command, ProtobufCBinaryData *keys,
					size_t count, union request *request);
	/* The codes of an answer. */
	const Qmla__V1__Code *(*codes)(const ProtobufCMessage *response, size_t *count);
	/* True: done anywhere is done; false: a node that failed may still hold the key. */
	bool anywhere;
	qmla_client_t *client;
	const char *owner;
	uint32_t ttl_ms;
};

static void set_identity(const qmla_client_t *client, ProtobufCBinaryData *identity)
{
	identity->data = (uint8_t *)(uintptr_t)client->settings.identity.bytes;
	identity->len = sizeof(client->settings.identity.bytes);
}

/* 0: not there, 1: done, 2: failed; the other way round when done anywhere is done. */
static int weight_of(const struct command *command, qmla_status_t status)
{
	if (status == QMLA_ERR_NOT_FOUND)
		return 0;
	if (status == QMLA_OK)
		return command->anywhere ? 2 : 1;
	return command->anywhere ? 1 : 2;
}

static void join_status(const struct command *command, qmla_status_t status, qmla_status_t *joined)
{
	if (weight_of(command, status) > weight_of(command, *joined))
		*joined = status;
}

static void take_codes(const struct command *command, const struct qml_call *call, size_t count,
		       qmla_status_t *joined)
{
	qmla_status_t status = call->status;
	const Qmla__V1__Code *codes = NULL;
	size_t given = 0;

	if (status == QMLA_OK) {
		codes = command->codes(call->response, &given);
		if (given != count)
			status = QMLA_ERR_FORMAT;
	}
	for (size_t i = 0; i < count; i++)
		join_status(command, status == QMLA_OK ? qml_calls_code(codes[i]) : status,
			    &joined[i]);
}

#define COMMAND_KEYS 64 /* what any node takes in one call */

/* One batch of keys on every node that is not left out. */
static qmla_status_t run_batch(const struct command *command, const qmla_key_t *keys, size_t count,
			       qmc_time_t deadline, qmla_status_t *joined)
{
	qmla_client_t *client = command->client;
	struct qml_call *calls = calloc(client->node_count, sizeof(*calls));
	ProtobufCBinaryData *binary = calloc(count, sizeof(*binary));
	union request request;
	size_t asked = 0;

	if (!calls || !binary) {
		free(binary);
		free(calls);
		return QMLA_ERR_NO_MEMORY;
	}
	qml_calls_point_keys(keys, NULL, count, binary);
	for (size_t n = 0; n < client->node_count; n++) {
		qmla_status_t health = qml_node_health(client->nodes[n]);

		for (size_t i = 0; health != QMLA_OK && i < count; i++)
			join_status(command, health, &joined[i]);
		if (health != QMLA_OK)
			continue;
		calls[asked++] = (struct qml_call){
			.node = client->nodes[n],
			.path = command->path,
			.request = command->fill(command, binary, count, &request),
			.response_type = command->response_type,
		};
	}
	qml_calls_run(calls, asked, deadline);
	for (size_t n = 0; n < asked; n++)
		take_codes(command, &calls[n], count, joined);
	qml_calls_release(calls, asked);
	free(binary);
	free(calls);
	return QMLA_OK;
}

static qmla_status_t run_command(const struct command *command, const qmla_key_t *keys,
				 size_t count, uint32_t timeout_ms, qmla_status_t *statuses)
{
	qmc_time_t deadline = qml_client_deadline(timeout_ms);
	qmla_status_t status = qml_client_check_keys(command->client, keys, count);
	qmla_status_t first = QMLA_OK;

	for (size_t at = 0; at < count && status == QMLA_OK; at += COMMAND_KEYS) {
		size_t some = count - at < COMMAND_KEYS ? count - at : COMMAND_KEYS;
		qmla_status_t joined[COMMAND_KEYS];

		for (size_t i = 0; i < some; i++)
			joined[i] = QMLA_ERR_NOT_FOUND;
		status = run_batch(command, keys + at, some, deadline, joined);
		for (size_t i = 0; i < some && status == QMLA_OK; i++) {
			if (statuses)
				statuses[at + i] = joined[i];
			if (first == QMLA_OK && joined[i] != QMLA_ERR_NOT_FOUND)
				first = joined[i];
		}
	}
	return status != QMLA_OK ? status : first;
}

static const ProtobufCMessage *fill_remove(const struct command *command, ProtobufCBinaryData *keys,
					   size_t count, union request *request)
{
	qmla__v1__remove_request__init(&request->remove);
	set_identity(command->client, &request->remove.identity);
	request->remove.keys = keys;
	request->remove.n_keys = count;
	return &request->remove.base;
}

static const Qmla__V1__Code *remove_codes(const ProtobufCMessage *message, size_t *count)
{
	const Qmla__V1__RemoveResponse *response = (const Qmla__V1__RemoveResponse *)message;

	*count = response->n_codes;
	return response->codes;
}

qmla_status_t qmla_client_remove(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				 uint32_t timeout_ms, qmla_status_t *statuses)
{
	const struct command command = {
		.path = "/qmla.v1.Cache/Remove",
		.response_type = &qmla__v1__remove_response__descriptor,
		.fill = fill_remove,
		.codes = remove_codes,
		.client = client,
	};

	return run_command(&command, keys, count, timeout_ms, statuses);
}

static char *owner_text(const struct command *command)
{
	return (char *)(uintptr_t)(command->owner ? command->owner : "");
}

static const ProtobufCMessage *fill_pin(const struct command *command, ProtobufCBinaryData *keys,
					size_t count, union request *request)
{
	qmla__v1__pin_request__init(&request->pin);
	set_identity(command->client, &request->pin.identity);
	request->pin.keys = keys;
	request->pin.n_keys = count;
	request->pin.ttl_ms = command->ttl_ms;
	request->pin.owner = owner_text(command);
	return &request->pin.base;
}

static const Qmla__V1__Code *pin_codes(const ProtobufCMessage *message, size_t *count)
{
	const Qmla__V1__PinResponse *response = (const Qmla__V1__PinResponse *)message;

	*count = response->n_codes;
	return response->codes;
}

qmla_status_t qmla_client_pin(qmla_client_t *client, const qmla_key_t *keys, size_t count,
			      const char *owner, uint32_t ttl_ms, uint32_t timeout_ms,
			      qmla_status_t *statuses)
{
	const struct command command = {
		.path = "/qmla.v1.Cache/Pin",
		.response_type = &qmla__v1__pin_response__descriptor,
		.fill = fill_pin,
		.codes = pin_codes,
		.anywhere = true,
		.client = client,
		.owner = owner,
		.ttl_ms = ttl_ms,
	};

	return run_command(&command, keys, count, timeout_ms, statuses);
}

static const ProtobufCMessage *fill_unpin(const struct command *command, ProtobufCBinaryData *keys,
					  size_t count, union request *request)
{
	qmla__v1__unpin_request__init(&request->unpin);
	set_identity(command->client, &request->unpin.identity);
	request->unpin.keys = keys;
	request->unpin.n_keys = count;
	request->unpin.owner = owner_text(command);
	return &request->unpin.base;
}

static const Qmla__V1__Code *unpin_codes(const ProtobufCMessage *message, size_t *count)
{
	const Qmla__V1__UnpinResponse *response = (const Qmla__V1__UnpinResponse *)message;

	*count = response->n_codes;
	return response->codes;
}

qmla_status_t qmla_client_unpin(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				const char *owner, uint32_t timeout_ms, qmla_status_t *statuses)
{
	const struct command command = {
		.path = "/qmla.v1.Cache/Unpin",
		.response_type = &qmla__v1__unpin_response__descriptor,
		.fill = fill_unpin,
		.codes = unpin_codes,
		.client = client,
		.owner = owner,
	};

	return run_command(&command, keys, count, timeout_ms, statuses);
}

qmla_status_t qmla_client_clear(qmla_client_t *client, uint32_t timeout_ms, uint64_t *removed)
{
	Qmla__V1__RemoveRequest request;
	qmla_status_t first = QMLA_OK;
	struct qml_call *calls;
	uint64_t total = 0;

	if (!client)
		return QMLA_ERR_INVALID_ARGUMENT;
	calls = calloc(client->node_count, sizeof(*calls));
	if (!calls)
		return QMLA_ERR_NO_MEMORY;
	qmla__v1__remove_request__init(&request);
	set_identity(client, &request.identity);
	request.all = true;
	for (size_t n = 0; n < client->node_count; n++) {
		calls[n].node = client->nodes[n];
		calls[n].path = "/qmla.v1.Cache/Remove";
		calls[n].request = &request.base;
		calls[n].response_type = &qmla__v1__remove_response__descriptor;
	}
	qml_calls_run(calls, client->node_count, qml_client_deadline(timeout_ms));
	for (size_t n = 0; n < client->node_count; n++) {
		if (calls[n].status == QMLA_OK)
			total += ((Qmla__V1__RemoveResponse *)calls[n].response)->removed;
		else if (first == QMLA_OK && calls[n].status != QMLA_ERR_NOT_FOUND)
			first = calls[n].status;
	}
	qml_calls_release(calls, client->node_count);
	free(calls);
	if (first == QMLA_OK && removed)
		*removed = total;
	return first;
}
