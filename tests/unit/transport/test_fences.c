/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/fences.h"

static void capability_of(uint32_t number, size_t at, uint8_t capability[QMT_CAPABILITY_BYTES])
{
	memset(capability, 0, QMT_CAPABILITY_BYTES);
	memcpy(capability + at, &number, sizeof(number));
}

/* Capabilities that differ in four bytes only, wherever these are; the last ones stay. */
static void exactly_the_last_are_remembered(void **state)
{
	const uint32_t extra = 5000;

	(void)state;
	for (size_t at = 0; at <= QMT_CAPABILITY_BYTES - sizeof(uint32_t); at += 4) {
		struct qmt_fences *fences = NULL;
		uint8_t capability[QMT_CAPABILITY_BYTES];

		assert_int_equal(qmt_fences_create(&fences), QMLA_OK);
		for (uint32_t i = 0; i < QMT_FENCES_MAX + extra; i++) {
			capability_of(i, at, capability);
			assert_false(qmt_fences_has(fences, capability));
			qmt_fences_add(fences, capability);
			qmt_fences_add(fences, capability); /* again: no second place */
			assert_true(qmt_fences_has(fences, capability));
		}
		for (uint32_t i = 0; i < QMT_FENCES_MAX + 2 * extra; i++) {
			capability_of(i, at, capability);
			assert_int_equal(qmt_fences_has(fences, capability),
					 i >= extra && i < QMT_FENCES_MAX + extra);
		}
		qmt_fences_destroy(fences);
	}
	qmt_fences_destroy(NULL);
}

/* Structure in any part of a capability does not pile up in few chains. */
static void the_hash_spreads(void **state)
{
	(void)state;
	for (size_t at = 0; at <= QMT_CAPABILITY_BYTES - sizeof(uint32_t); at += 4) {
		unsigned chains[256] = {0};

		for (uint32_t i = 0; i < 25600; i++) {
			uint8_t capability[QMT_CAPABILITY_BYTES];

			capability_of(i, at, capability);
			chains[qmt_capability_hash(capability) % 256]++;
		}
		for (size_t i = 0; i < 256; i++)
			assert_in_range(chains[i], 25, 300); /* 100 on average */
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exactly_the_last_are_remembered),
		cmocka_unit_test(the_hash_spreads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
