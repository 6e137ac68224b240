/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every message of cache.proto, worker.proto and health.proto through the
 * budgeted allocator. The first byte chooses the message, the second the budget.
 * What unpacks must pack to the size it said; without unknown fields, what was
 * packed must come back byte for byte.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "proto/message.h"
#include "qmla/v1/cache.pb-c.h"
#include "qmla/v1/worker.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCServiceDescriptor *const services[] = {
	&qmla__v1__cache__descriptor,
	&qmla__v1__worker__descriptor,
	&grpc__health__v1__health__descriptor,
};

static const ProtobufCMessageDescriptor *choose(uint8_t number)
{
	unsigned total = 0;
	unsigned index;

	for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++)
		total += 2 * services[i]->n_methods;
	index = number % total;
	for (size_t i = 0;; i++) {
		unsigned here = 2 * services[i]->n_methods;

		if (index < here)
			return index % 2 ? services[i]->methods[index / 2].output
					 : services[i]->methods[index / 2].input;
		index -= here;
	}
}

static void die(const ProtobufCMessageDescriptor *type, const char *what)
{
	fprintf(stderr, "%s: %s\n", type->name, what);
	abort();
}

static uint8_t *pack(const ProtobufCMessage *message, size_t *size)
{
	uint8_t *bytes;

	*size = protobuf_c_message_get_packed_size(message);
	bytes = malloc(*size ? *size : 1);
	if (!bytes || protobuf_c_message_pack(message, bytes) != *size)
		die(message->descriptor, "packs to another size than it said");
	return bytes;
}

/*
 * Nothing of ours packs a message that it received, and protobuf-c does not keep
 * the odd tags of unknown fields. So only messages without any must be stable.
 */
static bool has_unknown_fields(const ProtobufCMessage *message)
{
	const ProtobufCMessageDescriptor *type = message->descriptor;

	if (message->n_unknown_fields)
		return true;
	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];
		const char *member = (const char *)message + field->offset;
		ProtobufCMessage *const *list = (ProtobufCMessage *const *)(const void *)member;
		size_t count = 1;

		if (field->type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			const char *counter = (const char *)message + field->quantifier_offset;

			memcpy(&count, counter, sizeof(count));
			list = *(ProtobufCMessage *const *const *)(const void *)member;
		}
		for (size_t j = 0; j < count; j++) {
			if (list[j] && has_unknown_fields(list[j]))
				return true;
		}
	}
	return false;
}

/* A string's tail after a NUL is dropped on the way, but only once. */
static void check_packing(const ProtobufCMessage *message)
{
	const ProtobufCMessageDescriptor *type = message->descriptor;
	ProtobufCMessage *second;
	size_t size, size_again;
	uint8_t *bytes = pack(message, &size);
	uint8_t *again;

	if (has_unknown_fields(message)) {
		free(bytes);
		return;
	}
	if (qmp_message_unpack(type, bytes, size, SIZE_MAX / 2, &second) != QMLA_OK)
		die(type, "does not unpack what it packed");
	again = pack(second, &size_again);
	if (size != size_again || memcmp(bytes, again, size))
		die(type, "changes when it is packed again");
	qmp_message_free(second);
	free(again);
	free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const ProtobufCMessageDescriptor *type;
	ProtobufCMessage *message = NULL;
	size_t budget;
	qmla_status_t status;

	if (size < 2)
		return 0;
	type = choose(data[0]);
	budget = data[1] < 128 ? (size_t)data[1] * 64 : (size_t)1 << 20;
	status = qmp_message_unpack(type, data + 2, size - 2, budget, &message);
	if (status == QMLA_OK)
		check_packing(message);
	else if (status != QMLA_ERR_FORMAT && status != QMLA_ERR_TOO_LARGE)
		die(type, "fails with a status that it may not have");
	else if (message)
		die(type, "writes its output although it failed");
	qmp_message_free(message);
	return 0;
}
