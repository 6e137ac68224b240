/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/blob.h"

__extension__ typedef unsigned __int128 wide;

static struct qmt_identity sample(enum qmt_kind kind)
{
	struct qmt_identity identity = {.kind = kind, .incarnation = UINT64_C(0x1122334455667788)};

	for (uint8_t i = 0; i < QMT_COOKIE_BYTES; i++)
		identity.cookie[i] = (uint8_t)(0xa0 + i);
	return identity;
}

/* The bytes that docs/transport.md shows. */
static void address_has_the_documented_bytes(void **state)
{
	static const uint8_t expected[] = {'Q',  'M',  'T',  'A',  1,    1,    12,   0,    0x88,
					   0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xa0, 0xa1,
					   0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa,
					   0xab, 0xac, 0xad, 0xae, 0xaf, '[',  ':',  ':',  '1',
					   ']',  ':',  '6',  '5',  '4',  '3',  '2',  '1'};
	struct qmt_identity identity = sample(QMT_KIND_TCP), parsed;
	struct qmt_server_address address;
	char text[QMT_ADDRESS_TEXT_MAX];

	(void)state;
	assert_int_equal(qmt_address_encode(&identity, "[::1]:654321", &address), QMLA_OK);
	assert_int_equal(address.length, sizeof(expected));
	assert_memory_equal(address.bytes, expected, sizeof(expected));
	assert_int_equal(qmt_address_decode(&address, QMT_KIND_TCP, &parsed, text), QMLA_OK);
	assert_string_equal(text, "[::1]:654321");
	assert_int_equal(parsed.kind, QMT_KIND_TCP);
	assert_int_equal(parsed.incarnation, identity.incarnation);
	assert_memory_equal(parsed.cookie, identity.cookie, QMT_COOKIE_BYTES);
}

static void handle_has_the_documented_bytes(void **state)
{
	static const uint8_t expected[] = {'Q',  'M',  'T',  'H',  1,    2, 0, 0, 0x88, 0x77, 0x66,
					   0x55, 0x44, 0x33, 0x22, 0x11, 7, 0, 0, 0,    0,    0,
					   0,    0,    0,    0,    0x10, 0, 0, 0, 0,    0};
	struct qmt_identity identity = sample(QMT_KIND_SHM);
	struct qmt_remote_region region;
	struct qmt_handle handle;

	(void)state;
	qmt_handle_encode(&identity, 7, UINT64_C(1) << 20, &handle);
	assert_int_equal(handle.length, sizeof(expected));
	assert_memory_equal(handle.bytes, expected, sizeof(expected));
	assert_int_equal(qmt_handle_decode(&handle, &region), QMLA_OK);
	assert_int_equal(region.kind, QMT_KIND_SHM);
	assert_int_equal(region.incarnation, identity.incarnation);
	assert_int_equal(region.region, 7);
	assert_int_equal(region.bytes, 1 << 20);
}

static void identities_differ(void **state)
{
	struct qmt_identity a, b;

	(void)state;
	assert_int_equal(qmt_identity_create(QMT_KIND_TCP, &a), QMLA_OK);
	assert_int_equal(qmt_identity_create(QMT_KIND_TCP, &b), QMLA_OK);
	assert_int_not_equal(a.incarnation, b.incarnation);
	assert_memory_not_equal(a.cookie, b.cookie, QMT_COOKIE_BYTES);
}

static void bad_addresses_are_refused(void **state)
{
	struct qmt_identity identity = sample(QMT_KIND_TCP), parsed;
	struct qmt_server_address good, bad;
	char text[QMT_ADDRESS_TEXT_MAX];
	char long_text[QMT_ADDRESS_TEXT_MAX + 1];

	(void)state;
	assert_int_equal(qmt_address_encode(&identity, "host:1", &good), QMLA_OK);
	for (uint32_t length = 0; length < good.length; length++) {
		bad = good;
		bad.length = length;
		assert_int_equal(qmt_address_decode(&bad, QMT_KIND_TCP, &parsed, text),
				 QMLA_ERR_FORMAT);
	}
	bad = good;
	bad.length = QMT_ADDRESS_MAX + 1;
	assert_int_equal(qmt_address_decode(&bad, QMT_KIND_TCP, &parsed, text), QMLA_ERR_FORMAT);
	bad.length = UINT32_MAX;
	assert_int_equal(qmt_address_decode(&bad, QMT_KIND_TCP, &parsed, text), QMLA_ERR_FORMAT);
	bad = good;
	bad.bytes[34] = 0; /* inside the text */
	assert_int_equal(qmt_address_decode(&bad, QMT_KIND_TCP, &parsed, text), QMLA_ERR_FORMAT);
	bad = good;
	bad.bytes[4] = 2;
	assert_int_equal(qmt_address_decode(&bad, QMT_KIND_TCP, &parsed, text),
			 QMLA_ERR_UNSUPPORTED);
	assert_int_equal(qmt_address_decode(&good, QMT_KIND_SHM, &parsed, text),
			 QMLA_ERR_UNSUPPORTED);
	memset(long_text, 'x', sizeof(long_text) - 1);
	long_text[QMT_ADDRESS_TEXT_MAX] = '\0';
	assert_int_equal(qmt_address_encode(&identity, long_text, &bad), QMLA_ERR_TOO_LARGE);
	long_text[QMT_ADDRESS_TEXT_MAX - 1] = '\0';
	assert_int_equal(qmt_address_encode(&identity, long_text, &bad), QMLA_OK);
	assert_int_equal(qmt_address_decode(&bad, QMT_KIND_TCP, &parsed, text), QMLA_OK);
	assert_string_equal(text, long_text);
}

static void bad_handles_are_refused(void **state)
{
	struct qmt_identity identity = sample(QMT_KIND_TCP);
	struct qmt_handle good, bad;
	struct qmt_remote_region region;

	(void)state;
	qmt_handle_encode(&identity, 1, 100, &good);
	for (uint32_t length = 0; length <= QMT_HANDLE_MAX + 1; length++) {
		bad = good;
		bad.length = length;
		assert_int_equal(qmt_handle_decode(&bad, &region),
				 length == good.length ? QMLA_OK : QMLA_ERR_FORMAT);
	}
	for (size_t i = 0; i < 8; i++) {
		bad = good;
		bad.bytes[i] ^= 0x40;
		assert_int_not_equal(qmt_handle_decode(&bad, &region), QMLA_OK);
	}
}

/* Against 128-bit arithmetic, at every corner. */
static void op_check_never_wraps(void **state)
{
	static const uint64_t corners[] = {0,
					   1,
					   2,
					   99,
					   100,
					   101,
					   UINT64_MAX,
					   UINT64_MAX - 1,
					   UINT64_MAX - 99,
					   UINT64_MAX - 100,
					   UINT64_C(1) << 63,
					   (UINT64_C(1) << 63) - 1,
					   UINT64_C(1) << 32};
	const size_t n = sizeof(corners) / sizeof(corners[0]);
	struct qmt_identity identity = sample(QMT_KIND_TCP);
	struct qmt_remote_region region;
	struct qmt_handle handle;
	uint8_t byte;

	(void)state;
	for (size_t i = 0; i < n * n * n; i++) {
		uint64_t bytes = corners[i % n];
		struct qmt_op op = {.access = QMT_READ,
				    .remote = &handle,
				    .local = &byte,
				    .remote_offset = corners[i / n % n],
				    .length = corners[i / n / n]};
		wide end = (wide)op.remote_offset + op.length;
		bool inside = op.length > 0 && end <= bytes;

		qmt_handle_encode(&identity, 1, bytes, &handle);
		assert_int_equal(qmt_op_check(&op, &identity, UINT64_MAX, &region) == QMLA_OK,
				 inside);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(address_has_the_documented_bytes),
		cmocka_unit_test(handle_has_the_documented_bytes),
		cmocka_unit_test(identities_differ),
		cmocka_unit_test(bad_addresses_are_refused),
		cmocka_unit_test(bad_handles_are_refused),
		cmocka_unit_test(op_check_never_wraps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
