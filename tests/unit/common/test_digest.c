/* SPDX-License-Identifier: Apache-2.0 */
#include "common/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* FIPS 180-4 examples. */
#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define ABC   "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

static void sha256_matches_the_standard(void **state)
{
	uint8_t digest[QMC_SHA256_BYTES];
	char text[65];

	(void)state;
	assert_int_equal(qmc_sha256("", 0, digest), QMLA_OK);
	qmc_hex_encode(digest, sizeof(digest), text);
	assert_string_equal(text, EMPTY);
	assert_int_equal(qmc_sha256("abc", 3, digest), QMLA_OK);
	qmc_hex_encode(digest, sizeof(digest), text);
	assert_string_equal(text, ABC);
}

static void incremental_equals_whole_and_starts_over(void **state)
{
	struct qmc_sha256 *hash;
	uint8_t digest[QMC_SHA256_BYTES];
	char text[65];

	(void)state;
	assert_int_equal(qmc_sha256_create(&hash), QMLA_OK);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(qmc_sha256_update(hash, "a", 1), QMLA_OK);
		assert_int_equal(qmc_sha256_update(hash, "bc", 2), QMLA_OK);
		assert_int_equal(qmc_sha256_finish(hash, digest), QMLA_OK);
		qmc_hex_encode(digest, sizeof(digest), text);
		assert_string_equal(text, ABC);
	}
	qmc_sha256_destroy(hash);
	qmc_sha256_destroy(NULL);
}

static void hex_refuses_what_is_not_exactly_hex(void **state)
{
	uint8_t out[2] = {0xee, 0xee};

	(void)state;
	assert_int_equal(qmc_hex_decode("0aF", out, 2), QMLA_ERR_FORMAT);
	assert_int_equal(qmc_hex_decode("0aF01", out, 2), QMLA_ERR_FORMAT);
	assert_int_equal(qmc_hex_decode("0aG0", out, 2), QMLA_ERR_FORMAT);
	assert_int_equal(out[0], 0xee); /* untouched on failure */
	assert_int_equal(qmc_hex_decode("0aF0", out, 2), QMLA_OK);
	assert_int_equal(out[0], 0x0a);
	assert_int_equal(out[1], 0xf0);
}

static void random_bytes_differ(void **state)
{
	uint8_t a[32] = {0};
	uint8_t b[32] = {0};

	(void)state;
	assert_int_equal(qmc_random_bytes(a, sizeof(a)), QMLA_OK);
	assert_int_equal(qmc_random_bytes(b, sizeof(b)), QMLA_OK);
	assert_false(qmc_equal_constant_time(a, b, sizeof(a)));
	assert_true(qmc_equal_constant_time(a, a, sizeof(a)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sha256_matches_the_standard),
		cmocka_unit_test(incremental_equals_whole_and_starts_over),
		cmocka_unit_test(hex_refuses_what_is_not_exactly_hex),
		cmocka_unit_test(random_bytes_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
