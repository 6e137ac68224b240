/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "proto/message.h"
#include "proto/rpc_client.h"
#include "qmla/v1/cache.pb-c.h"
#include "qmla/v1/worker.pb-c.h"

#define LOOKUP &qmla__v1__lookup_request__descriptor

/* `count` keys of `length` bytes, written by hand: tag 2, wire type 2. */
static size_t write_keys(uint8_t *wire, size_t count, uint8_t length)
{
	size_t at = 0;

	for (size_t i = 0; i < count; i++) {
		wire[at++] = 0x12;
		wire[at++] = length;
		memset(wire + at, (int)(i & 0xff), length);
		at += length;
	}
	return at;
}

static void test_unpacks_what_the_wire_says(void **state)
{
	/* identity 'ab', two keys, lease_ms 300, stop_at_hole */
	static const uint8_t wire[] = {0x0a, 2,   'a', 'b',  0x12, 1,    'x',  0x12,
				       2,    'y', 'z', 0x18, 0xac, 0x02, 0x20, 1};
	ProtobufCMessage *message;
	Qmla__V1__LookupRequest *request;

	(void)state;
	assert_int_equal(qmp_message_unpack(LOOKUP, wire, sizeof(wire), 1 << 16, &message),
			 QMLA_OK);
	request = (Qmla__V1__LookupRequest *)message;
	assert_int_equal(request->identity.len, 2);
	assert_memory_equal(request->identity.data, "ab", 2);
	assert_int_equal(request->n_keys, 2);
	assert_memory_equal(request->keys[1].data, "yz", 2);
	assert_int_equal(request->lease_ms, 300);
	assert_true(request->stop_at_hole);
	qmp_message_free(message);
}

static void test_every_truncation_is_refused_or_shorter(void **state)
{
	uint8_t wire[64];
	size_t size = write_keys(wire, 3, 16);

	(void)state;
	for (size_t cut = 0; cut < size; cut++) {
		ProtobufCMessage *message = NULL;
		/* A copy of the exact size: reading past it is seen by ASan. */
		uint8_t *copy = malloc(cut ? cut : 1);
		qmla_status_t status;

		memcpy(copy, wire, cut);
		status = qmp_message_unpack(LOOKUP, copy, cut, 1 << 16, &message);
		assert_int_equal(status, cut % 18 ? QMLA_ERR_FORMAT : QMLA_OK);
		if (status == QMLA_OK)
			assert_int_equal(((Qmla__V1__LookupRequest *)message)->n_keys, cut / 18);
		else
			assert_null(message);
		qmp_message_free(message);
		free(copy);
	}
}

static void test_empty_payload_is_an_empty_message(void **state)
{
	ProtobufCMessage *message;

	(void)state;
	assert_int_equal(qmp_message_unpack(LOOKUP, NULL, 0, 1 << 16, &message), QMLA_OK);
	assert_int_equal(((Qmla__V1__LookupRequest *)message)->n_keys, 0);
	qmp_message_free(message);
	qmp_message_free(NULL);
}

static void test_garbage_is_refused(void **state)
{
	static const char *const wires[] = {
		"\x07",                                         /* wire type 7 */
		"\x0b\x0b\x0c",                                 /* groups */
		"\x10\x01",                                     /* keys as a varint */
		"\x12\xff\xff\xff\xff\xff\x0f",                 /* length past everything */
		"\x1a\x01x",                                    /* lease_ms as bytes */
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", /* tag without end */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(wires) / sizeof(wires[0]); i++) {
		ProtobufCMessage *message = NULL;

		assert_int_equal(qmp_message_unpack(LOOKUP, (const uint8_t *)wires[i],
						    strlen(wires[i]), 1 << 16, &message),
				 QMLA_ERR_FORMAT);
		assert_null(message);
	}
}

/* Two bytes of wire for an empty key ask for 16 bytes of array and 40 or more of scratch. */
static void test_budget_stops_amplification(void **state)
{
	enum { COUNT = 500000 };
	uint8_t *wire = malloc(2 * COUNT);
	size_t size = write_keys(wire, COUNT, 0);
	ProtobufCMessage *message = NULL;

	(void)state;
	assert_int_equal(qmp_message_unpack(LOOKUP, wire, size, 16u << 20, &message),
			 QMLA_ERR_TOO_LARGE);
	assert_null(message);
	assert_int_equal(qmp_message_unpack(LOOKUP, wire, size, 256u << 20, &message), QMLA_OK);
	assert_int_equal(((Qmla__V1__LookupRequest *)message)->n_keys, COUNT);
	qmp_message_free(message);
	free(wire);
}

static void test_honest_requests_fit_the_default_budget(void **state)
{
	enum { COUNT = 58000 }; /* 18 bytes each: just under 1 MiB */
	uint8_t *wire = malloc(18 * COUNT);
	size_t size = write_keys(wire, COUNT, 16);
	ProtobufCMessage *message;

	(void)state;
	assert_true(size < 1 << 20);
	assert_int_equal(qmp_message_unpack(LOOKUP, wire, size, 16u << 20, &message), QMLA_OK);
	assert_int_equal(((Qmla__V1__LookupRequest *)message)->keys[57999].data[0], 57999 & 0xff);
	qmp_message_free(message);
	free(wire);
}

/* Unpacking fails cleanly wherever the budget ends (leaks are ASan's to find). */
static void test_every_budget_fails_or_succeeds(void **state)
{
	uint8_t wire[18 * 100];
	size_t size = write_keys(wire, 100, 16);
	bool succeeded = false;

	(void)state;
	for (size_t budget = 0; budget < 16384; budget += 16) {
		ProtobufCMessage *message = NULL;
		qmla_status_t status = qmp_message_unpack(LOOKUP, wire, size, budget, &message);

		assert_true(status == QMLA_OK || status == QMLA_ERR_TOO_LARGE);
		assert_true(status == QMLA_OK || !succeeded);
		succeeded = status == QMLA_OK;
		qmp_message_free(message);
	}
	assert_true(succeeded);
}

/* Visits every message below `type`; `depth` beyond the number of types is a cycle. */
static size_t depth_of(const ProtobufCMessageDescriptor *type, size_t depth)
{
	size_t deepest = depth;

	if (depth > 16)
		return depth;
	for (unsigned i = 0; i < type->n_fields; i++) {
		size_t below;

		if (type->fields[i].type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		below = depth_of(type->fields[i].descriptor, depth + 1);
		deepest = below > deepest ? below : deepest;
	}
	return deepest;
}

/* protobuf-c unpacks by recursion without a limit, so no message may contain itself. */
static void test_no_message_is_recursive(void **state)
{
	static const ProtobufCServiceDescriptor *const services[] = {
		&qmla__v1__cache__descriptor, &qmla__v1__worker__descriptor,
		&grpc__health__v1__health__descriptor};

	(void)state;
	for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
		for (unsigned j = 0; j < services[i]->n_methods; j++) {
			assert_in_range(depth_of(services[i]->methods[j].input, 1), 1, 4);
			assert_in_range(depth_of(services[i]->methods[j].output, 1), 1, 4);
		}
	}
}

/* Bytes nested 200,000 deep are one field to a message without recursion. */
static void test_deep_nesting_is_harmless(void **state)
{
	enum { DEPTH = 200000 };
	uint8_t *wire = malloc(DEPTH * 8);
	size_t at = DEPTH * 8;
	size_t begin = at;
	ProtobufCMessage *message = NULL;

	(void)state;
	for (size_t i = 0; i < DEPTH; i++) {
		size_t length = at - begin;
		uint8_t head[6] = {0x4a}; /* DescribeResponse.pools, and an unknown tag below */
		size_t n = 1;

		for (; length >= 0x80; length >>= 7)
			head[n++] = (uint8_t)(length | 0x80);
		head[n++] = (uint8_t)length;
		if (begin < n)
			break;
		begin -= n;
		memcpy(wire + begin, head, n);
	}
	assert_true(at - begin > 500000);
	(void)qmp_message_unpack(&qmla__v1__describe_response__descriptor, wire + begin, at - begin,
				 16u << 20, &message);
	qmp_message_free(message);
	free(wire);
}

static void test_lengths_are_checked(void **state)
{
	uint8_t bytes[16] = {0};
	ProtobufCBinaryData keys[] = {{16, bytes}, {16, bytes}, {15, bytes}};

	(void)state;
	assert_true(qmp_bytes_all_have_length(keys, 0, 16));
	assert_true(qmp_bytes_all_have_length(keys, 2, 16));
	assert_false(qmp_bytes_all_have_length(keys, 3, 16));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unpacks_what_the_wire_says),
		cmocka_unit_test(test_every_truncation_is_refused_or_shorter),
		cmocka_unit_test(test_empty_payload_is_an_empty_message),
		cmocka_unit_test(test_garbage_is_refused),
		cmocka_unit_test(test_budget_stops_amplification),
		cmocka_unit_test(test_honest_requests_fit_the_default_budget),
		cmocka_unit_test(test_every_budget_fails_or_succeeds),
		cmocka_unit_test(test_no_message_is_recursive),
		cmocka_unit_test(test_deep_nesting_is_harmless),
		cmocka_unit_test(test_lengths_are_checked),
	};

	return cmocka_run_group_tests_name("message", tests, NULL, NULL);
}
