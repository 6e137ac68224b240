/* SPDX-License-Identifier: Apache-2.0 */
/* libqmla's keys against tests/data/format/keys.json, which docs/format.md describes. */
#include <jansson.h>
#include <qmla/cache.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/digest.h"

#define MAX_TOKENS 256u

static json_t *root;

static int load(void **state)
{
	json_error_t error;

	(void)state;
	root = json_load_file(QMLA_TEST_DATA "/format/keys.json", 0, &error);
	return root ? 0 : -1;
}

static int unload(void **state)
{
	(void)state;
	json_decref(root);
	return 0;
}

static qmla_identity_t identity_of(const json_t *object)
{
	const char *text = json_string_value(json_object_get(object, "identity"));
	qmla_identity_t identity;

	assert_non_null(text);
	assert_int_equal(qmc_hex_decode(text, identity.bytes, sizeof(identity.bytes)), QMLA_OK);
	return identity;
}

static void check_chain(const qmla_identity_t *identity, const json_t *chain,
			const uint32_t *tokens, size_t count)
{
	const json_t *wanted = json_object_get(chain, "keys");
	const char *name_space = json_string_value(json_object_get(chain, "namespace"));
	qmla_key_t keys[MAX_TOKENS / 64];

	assert_int_equal(json_array_size(wanted), count / 64);
	assert_int_equal(qmla_keys_compute(identity, name_space, tokens, count, keys), QMLA_OK);
	for (size_t i = 0; i < count / 64; i++) {
		char text[33];

		qmc_hex_encode(keys[i].bytes, sizeof(keys[i].bytes), text);
		assert_string_equal(text, json_string_value(json_array_get(wanted, i)));
	}
}

static size_t load_tokens(uint32_t tokens[MAX_TOKENS])
{
	const json_t *list = json_object_get(root, "tokens");
	size_t count = json_array_size(list);

	assert_true(count > 64 && count <= MAX_TOKENS);
	for (size_t i = 0; i < count; i++)
		tokens[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	return count;
}

static void test_namespaces(void **state)
{
	qmla_identity_t identity = identity_of(root);
	uint32_t tokens[MAX_TOKENS];
	size_t count = load_tokens(tokens), i;
	json_t *chain;

	(void)state;
	json_array_foreach(json_object_get(root, "keys"), i, chain)
	{
		check_chain(&identity, chain, tokens, count);
	}
	assert_true(i > 1);
}

static void test_other_identity(void **state)
{
	const json_t *chain = json_object_get(root, "other_identity");
	qmla_identity_t identity = identity_of(chain);
	uint32_t tokens[MAX_TOKENS];
	size_t count = load_tokens(tokens);

	(void)state;
	check_chain(&identity, chain, tokens, count);
}

static void test_the_documents_example(void **state)
{
	const json_t *chain = json_object_get(root, "simple");
	qmla_identity_t identity = identity_of(chain);
	uint32_t tokens[128];

	(void)state;
	for (uint32_t i = 0; i < 128; i++)
		tokens[i] = i;
	check_chain(&identity, chain, tokens, 128);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_namespaces),
		cmocka_unit_test(test_other_identity),
		cmocka_unit_test(test_the_documents_example),
	};

	return cmocka_run_group_tests_name("kernels/key_vectors", tests, load, unload);
}
