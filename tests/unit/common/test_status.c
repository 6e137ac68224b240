/* SPDX-License-Identifier: Apache-2.0 */
#include "common/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The values travel on the wire: written out again here so that a change shows. */
static const struct {
	int value;
	const char *name;
} wire[] = {
	{0, "ok"},
	{-1, "invalid_argument"},
	{-2, "not_found"},
	{-3, "already_exists"},
	{-4, "too_large"},
	{-5, "identity_mismatch"},
	{-6, "layout_mismatch"},
	{-7, "permission"},
	{-8, "unsupported"},
	{-9, "format"},
	{-20, "no_memory"},
	{-21, "resource_exhausted"},
	{-22, "busy"},
	{-23, "io"},
	{-24, "no_space"},
	{-40, "unavailable"},
	{-41, "deadline"},
	{-42, "cancelled"},
	{-43, "peer_restarted"},
	{-44, "draining"},
	{-60, "lease_expired"},
	{-61, "stale"},
	{-62, "corrupt"},
	{-80, "internal"},
};

static void names_and_values_are_fixed(void **state)
{
	size_t known = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(wire) / sizeof(wire[0]); i++) {
		assert_string_equal(qmla_status_name((qmla_status_t)wire[i].value), wire[i].name);
		assert_true(strlen(qmla_status_text((qmla_status_t)wire[i].value)) > 0);
	}
	for (int value = -200; value <= 200; value++)
		known += qmc_status_is_known(value);
	assert_int_equal(known, sizeof(wire) / sizeof(wire[0]));
	assert_string_equal(qmla_status_name((qmla_status_t)-7777), "unknown");
}

static void errno_maps_to_what_a_caller_can_act_on(void **state)
{
	(void)state;
	assert_int_equal(qmc_status_from_errno(0), QMLA_OK);
	assert_int_equal(qmc_status_from_errno(EADDRINUSE), QMLA_ERR_BUSY);
	assert_int_equal(qmc_status_from_errno(ENOSPC), QMLA_ERR_NO_SPACE);
	assert_int_equal(qmc_status_from_errno(EROFS), QMLA_ERR_NO_SPACE);
	assert_int_equal(qmc_status_from_errno(ECONNRESET), QMLA_ERR_UNAVAILABLE);
	assert_int_equal(qmc_status_from_errno(ETIMEDOUT), QMLA_ERR_DEADLINE);
	assert_int_equal(qmc_status_from_errno(ENOENT), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmc_status_from_errno(EMFILE), QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(qmc_status_from_errno(12345), QMLA_ERR_INTERNAL);
}

static void only_passing_troubles_are_worth_a_retry(void **state)
{
	(void)state;
	assert_true(qmc_status_is_retryable(QMLA_ERR_RESOURCE_EXHAUSTED));
	assert_true(qmc_status_is_retryable(QMLA_ERR_UNAVAILABLE));
	assert_true(qmc_status_is_retryable(QMLA_ERR_DEADLINE));
	assert_false(qmc_status_is_retryable(QMLA_OK));
	assert_false(qmc_status_is_retryable(QMLA_ERR_INVALID_ARGUMENT));
	assert_false(qmc_status_is_retryable(QMLA_ERR_CANCELLED));
	assert_false(qmc_status_is_retryable(QMLA_ERR_CORRUPT));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_and_values_are_fixed),
		cmocka_unit_test(errno_maps_to_what_a_caller_can_act_on),
		cmocka_unit_test(only_passing_troubles_are_worth_a_retry),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
