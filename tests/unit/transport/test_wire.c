/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/wire.h"

static const struct qmt_wire_request sample_request = {
	.kind = QMT_WIRE_WRITE,
	.id = UINT64_C(0x0102030405060708),
	.region = 9,
	.offset = UINT64_C(0x1000000000),
	.length = 0x8000,
	.capability = {0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc,
		       0xcd, 0xce, 0xcf},
};

/* The bytes that docs/transport.md shows. */
static void request_has_the_documented_bytes(void **state)
{
	static const uint8_t expected[QMT_WIRE_REQUEST_BYTES] = {
		2,    0,    0,    0,    0,    0,    0,    0,    /* kind, reserved, status */
		8,    7,    6,    5,    4,    3,    2,    1,    /* id */
		9,    0,    0,    0,    0,    0,    0,    0,    /* region */
		0,    0,    0,    0,    0x10, 0,    0,    0,    /* offset */
		0,    0x80, 0,    0,    0,    0,    0,    0,    /* length */
		0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, /* capability */
		0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf, 0, 0, 0, 0, 0, 0, 0, 0};
	struct qmt_wire_request parsed;
	uint8_t out[QMT_WIRE_REQUEST_BYTES];

	(void)state;
	qmt_wire_request_encode(&sample_request, out);
	assert_memory_equal(out, expected, sizeof(out));
	assert_int_equal(qmt_wire_request_decode(out, QMT_KIND_TCP, &parsed), QMLA_OK);
	assert_int_equal(parsed.kind, sample_request.kind);
	assert_int_equal(parsed.id, sample_request.id);
	assert_int_equal(parsed.region, sample_request.region);
	assert_int_equal(parsed.offset, sample_request.offset);
	assert_int_equal(parsed.length, sample_request.length);
	assert_memory_equal(parsed.capability, sample_request.capability, QMT_CAPABILITY_BYTES);
	assert_int_equal(parsed.staging, 0);
	assert_int_equal(parsed.status, QMLA_OK);
}

static void reply_has_the_documented_bytes(void **state)
{
	static const uint8_t expected[QMT_WIRE_REPLY_BYTES] = {
		1,    0x80, 0, 0, 0xf9, 0xff, 0xff, 0xff, /* kind, reserved, status -7 */
		0x21, 0,    0, 0, 0,    0,    0,    0,    /* id */
	};
	struct qmt_wire_reply parsed,
		reply = {.kind = QMT_WIRE_READ, .id = 0x21, .status = QMLA_ERR_PERMISSION};
	uint8_t out[QMT_WIRE_REPLY_BYTES];

	(void)state;
	qmt_wire_reply_encode(&reply, out);
	assert_memory_equal(out, expected, sizeof(out));
	assert_int_equal(qmt_wire_reply_decode(out, QMT_KIND_TCP, &parsed), QMLA_OK);
	assert_int_equal(parsed.kind, QMT_WIRE_READ);
	assert_int_equal(parsed.id, 0x21);
	assert_int_equal(parsed.status, QMLA_ERR_PERMISSION);
	assert_int_equal(parsed.length, 0);
}

static void handshake_has_the_documented_bytes(void **state)
{
	static const uint8_t hello_bytes[] = {'Q', 'M', 'T', '1', 1, 0, 3, 0, 0xef, 0xbe,
					      0,   0,   0,   0,   0, 0, 1, 2, 3,    4};
	static const uint8_t welcome_bytes[QMT_WIRE_WELCOME_BYTES] = {
		'Q', 'M', 'T', 'W', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0,   0,   5,   0,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40};
	struct qmt_wire_hello hello = {
		.version_min = 1, .version_max = 3, .incarnation = 0xbeef, .cookie = {1, 2, 3, 4}};
	struct qmt_wire_welcome welcome = {
		.version = 1, .incarnation = 5, .max_length = UINT64_C(1) << 30};
	uint8_t out[QMT_WIRE_HELLO_BYTES];

	(void)state;
	qmt_wire_hello_encode(&hello, out);
	assert_memory_equal(out, hello_bytes, sizeof(hello_bytes));
	qmt_wire_welcome_encode(&welcome, out);
	assert_memory_equal(out, welcome_bytes, sizeof(welcome_bytes));
}

/* Each row changes one field of a valid request. */
static void malformed_requests_are_refused(void **state)
{
	static const struct {
		size_t at;
		uint8_t value;
		bool shm_accepts;
	} cases[] = {
		{0, 0, false},     {0, 5, false}, {0, 0xff, false}, {1, 1, false},  {2, 1, false},
		{3, 0x80, false},  {4, 1, false}, {4, 0xff, false}, {39, 1, false}, {36, 1, false},
		{35, 0x80, false}, {56, 1, true}, {0, 4, true}, /* STAGE */
	};
	uint8_t good[QMT_WIRE_REQUEST_BYTES], bad[QMT_WIRE_REQUEST_BYTES];
	struct qmt_wire_request parsed;

	(void)state;
	qmt_wire_request_encode(&sample_request, good);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memcpy(bad, good, sizeof(bad));
		bad[cases[i].at] = cases[i].value;
		assert_int_equal(qmt_wire_request_decode(bad, QMT_KIND_TCP, &parsed),
				 QMLA_ERR_FORMAT);
		assert_int_equal(qmt_wire_request_decode(bad, QMT_KIND_SHM, &parsed),
				 cases[i].shm_accepts ? QMLA_OK : QMLA_ERR_FORMAT);
	}
	memcpy(bad, good, sizeof(bad));
	memset(bad + 32, 0, 8); /* no bytes at all */
	assert_int_equal(qmt_wire_request_decode(bad, QMT_KIND_TCP, &parsed), QMLA_ERR_FORMAT);
	bad[35] = 0x40; /* exactly the largest */
	assert_int_equal(qmt_wire_request_decode(bad, QMT_KIND_TCP, &parsed), QMLA_OK);
	bad[32] = 1;
	assert_int_equal(qmt_wire_request_decode(bad, QMT_KIND_TCP, &parsed), QMLA_ERR_FORMAT);
}

static void malformed_replies_are_refused(void **state)
{
	struct qmt_wire_reply parsed, reply = {.kind = QMT_WIRE_READ, .id = 1, .length = 64};
	uint8_t good[QMT_WIRE_REPLY_BYTES], bad[QMT_WIRE_REPLY_BYTES];
	static const struct {
		size_t at;
		uint8_t value;
	} cases[] = {{0, 3}, {0, 0},    {1, 0},  {1, 0x81}, {2, 1},
		     {4, 1}, {4, 0xff}, {16, 0}, {20, 1},   {24, 1}};

	(void)state;
	qmt_wire_reply_encode(&reply, good);
	assert_int_equal(qmt_wire_reply_decode(good, QMT_KIND_TCP, &parsed), QMLA_OK);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memcpy(bad, good, sizeof(bad));
		bad[cases[i].at] = cases[i].value;
		assert_int_equal(qmt_wire_reply_decode(bad, QMT_KIND_TCP, &parsed),
				 QMLA_ERR_FORMAT);
	}
	/* A refusal carries no bytes. */
	reply.status = QMLA_ERR_PERMISSION;
	qmt_wire_reply_encode(&reply, bad);
	assert_int_equal(qmt_wire_reply_decode(bad, QMT_KIND_TCP, &parsed), QMLA_ERR_FORMAT);
}

static void the_server_judges_a_hello(void **state)
{
	struct qmt_identity identity = {.kind = QMT_KIND_TCP, .incarnation = 77, .cookie = {1, 2}};
	struct qmt_wire_hello good = {
		.version_min = 1, .version_max = 9, .incarnation = 77, .cookie = {1, 2}};
	struct qmt_wire_hello hello = good;
	struct qmt_wire_welcome welcome;

	(void)state;
	qmt_wire_judge(&hello, &identity, &welcome);
	assert_int_equal(welcome.status, QMLA_OK);
	assert_int_equal(welcome.version, 1);
	assert_int_equal(welcome.incarnation, 77);
	hello.version_min = 2; /* only newer than ours */
	qmt_wire_judge(&hello, &identity, &welcome);
	assert_int_equal(welcome.status, QMLA_ERR_UNSUPPORTED);
	hello = good;
	hello.cookie[15] = 1;
	qmt_wire_judge(&hello, &identity, &welcome);
	assert_int_equal(welcome.status, QMLA_ERR_PERMISSION);
	hello.incarnation = 78;
	qmt_wire_judge(&hello, &identity, &welcome);
	assert_int_equal(welcome.status, QMLA_ERR_PEER_RESTARTED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(request_has_the_documented_bytes),
		cmocka_unit_test(reply_has_the_documented_bytes),
		cmocka_unit_test(handshake_has_the_documented_bytes),
		cmocka_unit_test(malformed_requests_are_refused),
		cmocka_unit_test(malformed_replies_are_refused),
		cmocka_unit_test(the_server_judges_a_hello),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
