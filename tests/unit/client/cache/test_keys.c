/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <qmla/cache.h>

#include "common/digest.h"
#include "tests/unit/client/cache/key_vectors.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void assert_keys(const qmla_key_t *keys, const char *const *vector, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		char text[33];

		qmc_hex_encode(keys[i].bytes, sizeof(keys[i].bytes), text);
		assert_string_equal(text, vector[i]);
	}
}

static void fill_identity(qmla_identity_t *identity, uint8_t first, uint8_t step)
{
	for (size_t i = 0; i < sizeof(identity->bytes); i++)
		identity->bytes[i] = (uint8_t)(first + step * i);
}

static void test_vectors(void **state)
{
	qmla_identity_t identity;
	uint32_t tokens[192];
	qmla_key_t keys[3];

	(void)state;
	memset(tokens, 0, sizeof(tokens));
	fill_identity(&identity, 0, 0);
	assert_int_equal(qmla_keys_compute(&identity, NULL, tokens, 128, keys), QMLA_OK);
	assert_keys(keys, vector_zeros, COUNT(vector_zeros));

	fill_identity(&identity, 0, 1);
	for (uint32_t i = 0; i < 192; i++)
		tokens[i] = i;
	assert_int_equal(qmla_keys_compute(&identity, "", tokens, 192, keys), QMLA_OK);
	assert_keys(keys, vector_counting, COUNT(vector_counting));
	assert_int_equal(qmla_keys_compute(&identity, "tenant-a", tokens, 192, keys), QMLA_OK);
	assert_keys(keys, vector_namespace, COUNT(vector_namespace));

	fill_identity(&identity, 255, 0);
	for (uint32_t i = 0; i < 64; i++)
		tokens[i] = UINT32_MAX - 7919 * i;
	assert_int_equal(qmla_keys_compute(&identity, "t\xc3\xa9", tokens, 64, keys), QMLA_OK);
	assert_keys(keys, vector_large_ids, COUNT(vector_large_ids));
}

/* A block that is not full has no key. */
static void test_tail_has_no_key(void **state)
{
	qmla_identity_t identity;
	uint32_t tokens[127];
	qmla_key_t keys[2];
	qmla_key_t untouched;

	(void)state;
	fill_identity(&identity, 7, 0);
	for (uint32_t i = 0; i < 127; i++)
		tokens[i] = 3 * i + 1;
	memset(&keys[1], 0x5a, sizeof(keys[1]));
	untouched = keys[1];
	assert_int_equal(qmla_keys_compute(&identity, "x", tokens, 127, keys), QMLA_OK);
	assert_int_equal(COUNT(vector_tail), 1);
	assert_keys(keys, vector_tail, 1);
	assert_memory_equal(&keys[1], &untouched, sizeof(untouched));
	assert_int_equal(qmla_keys_compute(&identity, "x", tokens, 63, keys), QMLA_OK);
}

/* Growing a sequence block by block gives the keys of the whole. */
static void test_chain_extends(void **state)
{
	qmla_identity_t identity;
	qmla_key_chain_t chain, fork;
	uint32_t tokens[192];
	qmla_key_t keys[3], other;

	(void)state;
	fill_identity(&identity, 0, 1);
	for (uint32_t i = 0; i < 192; i++)
		tokens[i] = i;
	assert_int_equal(qmla_key_chain_start(&identity, "tenant-a", &chain), QMLA_OK);
	assert_int_equal(qmla_key_chain_extend(&chain, tokens, 1, keys), QMLA_OK);
	fork = chain;
	assert_int_equal(qmla_key_chain_extend(&chain, tokens + 64, 0, NULL), QMLA_OK);
	assert_int_equal(qmla_key_chain_extend(&chain, tokens + 64, 2, keys + 1), QMLA_OK);
	assert_keys(keys, vector_namespace, 3);
	assert_int_equal(qmla_key_chain_extend(&fork, tokens, 1, &other), QMLA_OK);
	assert_memory_not_equal(&other, &keys[1], sizeof(other));
}

static void test_refuses_null(void **state)
{
	qmla_identity_t identity = {{0}};
	qmla_key_chain_t chain;
	qmla_key_t key;
	uint32_t tokens[64] = {0};

	(void)state;
	assert_int_equal(qmla_keys_compute(NULL, NULL, tokens, 64, &key),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_keys_compute(&identity, NULL, NULL, 64, &key),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_keys_compute(&identity, NULL, tokens, 64, NULL),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_key_chain_start(&identity, NULL, NULL), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_key_chain_extend(NULL, tokens, 1, &key), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmla_key_chain_start(&identity, NULL, &chain), QMLA_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_tail_has_no_key),
		cmocka_unit_test(test_chain_extends),
		cmocka_unit_test(test_refuses_null),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
