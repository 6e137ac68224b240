/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "owner.h"
#include "transport/shm/memory.h"
#include "transport/shm/staging.h"

/* Spans taken and not released never overlap, never leave the ring, and room comes back. */
static void spans_never_overlap(void **state)
{
	enum { SPANS = 64 };
	struct qmt_staging staging;
	struct {
		uint64_t offset, length, cost;
	} held[SPANS];
	unsigned first = 0, last = 0, taken = 0;
	uint64_t x = 12345;
	bool fresh = false;

	(void)state;
	qmt_staging_init(&staging);
	assert_int_equal(qmt_staging_reserve(&staging, 1, &fresh), QMLA_OK);
	assert_true(fresh);
	assert_int_equal(staging.bytes, QMT_STAGING_BYTES);
	for (int step = 0; step < 200000; step++) {
		uint64_t length, offset = 0, cost = 0;

		x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
		length = 1 + (x >> 33) % (QMT_STAGING_BYTES / (1 + (x >> 20) % 50));
		if (last - first < SPANS && qmt_staging_take(&staging, length, &offset, &cost)) {
			assert_true(offset + length <= staging.bytes);
			for (unsigned i = first; i != last; i++) {
				uint64_t begin = held[i % SPANS].offset;

				assert_true(offset + length <= begin ||
					    begin + held[i % SPANS].length <= offset);
			}
			held[last % SPANS].offset = offset;
			held[last % SPANS].length = length;
			held[last++ % SPANS].cost = cost;
			taken++;
		} else {
			/* An empty ring has room for whatever fits at all. */
			assert_true(first != last);
			qmt_staging_release(&staging, held[first++ % SPANS].cost);
		}
	}
	assert_true(taken > 50000);
	qmt_staging_fini(&staging);
}

static void a_large_write_gets_a_larger_ring(void **state)
{
	struct qmt_staging staging;
	bool fresh = false;
	uint64_t offset, cost;

	(void)state;
	qmt_staging_init(&staging);
	assert_int_equal(qmt_staging_reserve(&staging, 100, &fresh), QMLA_OK);
	assert_int_equal(qmt_staging_reserve(&staging, QMT_STAGING_BYTES, &fresh), QMLA_OK);
	assert_false(fresh);
	assert_int_equal(qmt_staging_reserve(&staging, QMT_STAGING_BYTES + 1, &fresh), QMLA_OK);
	assert_true(fresh);
	assert_true(qmt_staging_take(&staging, QMT_STAGING_BYTES + 1, &offset, &cost));
	memset(staging.base + offset, 1, QMT_STAGING_BYTES + 1);
	assert_int_equal(qmt_shm_check(staging.fd, staging.bytes), QMLA_OK);
	assert_int_equal(qmt_shm_check(staging.fd, staging.bytes + 1), QMLA_ERR_PERMISSION);
	qmt_staging_fini(&staging);
	qmt_staging_fini(&staging);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(spans_never_overlap),
		CASE(a_large_write_gets_a_larger_ring),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
