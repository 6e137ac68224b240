/* SPDX-License-Identifier: Apache-2.0 */
/* Remove, Report, Pin and Unpin. */
#include "cmocka_first.h"

#include <string.h>

#include "node_fixture.h"

#define OK        QMLA__V1__CODE__CODE_OK
#define NOT_FOUND QMLA__V1__CODE__CODE_NOT_FOUND
#define BUSY      QMLA__V1__CODE__CODE_BUSY

static int setup(void **state)
{
	static struct node node;
	struct qms_service_config config = node_config();

	*state = &node;
	return node_start(&node, &config) && node_connect(&node, "tcp") == QMLA_OK ? 0 : -1;
}

static int teardown(void **state)
{
	struct node *node = *state;
	bool sound = node_sound(node);

	node_stop(node);
	return sound ? 0 : -1;
}

static qmla_status_t pin(struct node *node, uint64_t key, const char *owner, uint32_t ttl_ms,
			 Qmla__V1__Code *code)
{
	Qmla__V1__PinRequest request = QMLA__V1__PIN_REQUEST__INIT;
	Qmla__V1__PinResponse *response;
	struct node_keys keys;
	qmla_status_t status;

	node_keys_fill(&keys, key, 1);
	request.identity = node_identity(node);
	request.keys = keys.data;
	request.n_keys = 1;
	request.owner = (char *)(uintptr_t)owner;
	request.ttl_ms = ttl_ms;
	status = node_call(node, "Pin", &request.base, &qmla__v1__pin_response__descriptor,
			   &response);
	if (status == QMLA_OK) {
		*code = response->codes[0];
		qmp_message_free(&response->base);
	}
	return status;
}

static Qmla__V1__Code unpin(struct node *node, uint64_t key, const char *owner)
{
	Qmla__V1__UnpinRequest request = QMLA__V1__UNPIN_REQUEST__INIT;
	Qmla__V1__UnpinResponse *response;
	struct node_keys keys;
	Qmla__V1__Code code;

	node_keys_fill(&keys, key, 1);
	request.identity = node_identity(node);
	request.keys = keys.data;
	request.n_keys = 1;
	request.owner = (char *)(uintptr_t)owner;
	assert_int_equal(node_call(node, "Unpin", &request.base,
				   &qmla__v1__unpin_response__descriptor, &response),
			 QMLA_OK);
	code = response->codes[0];
	qmp_message_free(&response->base);
	return code;
}

static qmla_status_t remove_call(struct node *node, uint64_t key, size_t count, bool all,
				 Qmla__V1__Code *codes, uint64_t *removed)
{
	Qmla__V1__RemoveRequest request = QMLA__V1__REMOVE_REQUEST__INIT;
	Qmla__V1__RemoveResponse *response;
	struct node_keys keys;
	qmla_status_t status;

	node_keys_fill(&keys, key, count);
	request.identity = node_identity(node);
	request.keys = count ? keys.data : NULL;
	request.n_keys = count;
	request.all = all;
	status = node_call(node, "Remove", &request.base, &qmla__v1__remove_response__descriptor,
			   &response);
	if (status != QMLA_OK)
		return status;
	assert_int_equal(response->n_codes, count);
	for (size_t i = 0; i < count; i++)
		codes[i] = response->codes[i];
	*removed = response->removed;
	qmp_message_free(&response->base);
	return QMLA_OK;
}

static void removal_answers_key_by_key(void **state)
{
	struct node *node = *state;
	Qmla__V1__Code codes[3], code;
	uint64_t removed = 0;

	assert_int_equal(node_put(node, 1), OK);
	assert_int_equal(node_put(node, 3), OK);
	assert_int_equal(pin(node, 3, "me", 0, &code), QMLA_OK);
	assert_int_equal(code, OK);
	assert_int_equal(remove_call(node, 1, 3, false, codes, &removed), QMLA_OK);
	assert_int_equal(codes[0], OK);
	assert_int_equal(codes[1], NOT_FOUND);
	assert_int_equal(codes[2], BUSY);
	assert_int_equal(removed, 1);
	assert_int_equal(node_has(node, 1), NOT_FOUND);
	assert_int_equal(node_has(node, 3), OK);
	assert_int_equal(unpin(node, 3, "me"), OK);
	assert_int_equal(remove_call(node, 3, 1, false, codes, &removed), QMLA_OK);
	assert_int_equal(codes[0], OK);
	assert_int_equal(remove_call(node, 1, 0, false, codes, &removed),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(remove_call(node, 1, 1, true, codes, &removed), QMLA_ERR_INVALID_ARGUMENT);
	for (uint64_t key = 10; key < 15; key++)
		assert_int_equal(node_put(node, key), OK);
	assert_int_equal(remove_call(node, 1, 0, true, codes, &removed), QMLA_OK);
	assert_int_equal(removed, 5);
}

static void pins_have_owners_and_ends(void **state)
{
	struct node *node = *state;
	char long_owner[80];
	Qmla__V1__Code code = BUSY;

	memset(long_owner, 'x', sizeof(long_owner) - 1);
	long_owner[sizeof(long_owner) - 1] = '\0';
	assert_int_equal(node_put(node, 1), OK);
	assert_int_equal(pin(node, 1, "", 0, &code), QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(pin(node, 1, long_owner, 0, &code), QMLA_ERR_TOO_LARGE);
	assert_int_equal(pin(node, 2, "me", 0, &code), QMLA_OK);
	assert_int_equal(code, NOT_FOUND);
	assert_int_equal(pin(node, 1, "me", 60000, &code), QMLA_OK);
	assert_int_equal(code, OK);
	assert_int_equal(unpin(node, 1, "you"), NOT_FOUND);
	assert_int_equal(unpin(node, 1, "me"), OK);
	assert_int_equal(unpin(node, 1, "me"), NOT_FOUND);
}

static bool no_pin(const struct qms_store_stats *stats)
{
	return stats->pins == 0;
}

static void a_forgotten_pin_ends(void **state)
{
	struct node *node = *state;
	Qmla__V1__Code codes[1];
	uint64_t removed;

	assert_int_equal(node_put(node, 1), OK);
	assert_int_equal(pin(node, 1, "me", 30, &codes[0]), QMLA_OK);
	assert_true(node_await(node, no_pin));
	assert_int_equal(remove_call(node, 1, 1, false, codes, &removed), QMLA_OK);
	assert_int_equal(codes[0], OK);
}

static qmla_status_t report(struct node *node, uint64_t key, uint64_t generation,
			    Qmla__V1__Code reason, Qmla__V1__Code *code)
{
	Qmla__V1__ReportRequest request = QMLA__V1__REPORT_REQUEST__INIT;
	Qmla__V1__ReportItem item = QMLA__V1__REPORT_ITEM__INIT;
	Qmla__V1__ReportItem *items[] = {&item};
	Qmla__V1__ReportResponse *response;
	struct node_keys keys;
	qmla_status_t status;

	node_keys_fill(&keys, key, 1);
	item.key = keys.data[0];
	item.generation = generation;
	item.reason = reason;
	request.identity = node_identity(node);
	request.incarnation = node->incarnation;
	request.items = items;
	request.n_items = 1;
	status = node_call(node, "Report", &request.base, &qmla__v1__report_response__descriptor,
			   &response);
	if (status == QMLA_OK) {
		*code = response->codes[0];
		qmp_message_free(&response->base);
	}
	return status;
}

/* Scenario: a bit flipped in the pool. The reader finds it, the node drops the block. */
static void a_reported_block_is_dropped_once(void **state)
{
	struct node *node = *state;
	Qmla__V1__Code code = OK;

	assert_int_equal(node_put(node, 1), OK);
	Qmla__V1__LookupResponse *r = node_lookup(node, 1, 1, 1000);
	uint64_t generation = r->entries[0]->generation;

	assert_int_equal(report(node, 1, generation, QMLA__V1__CODE__CODE_OK, &code), QMLA_OK);
	assert_int_equal(code, QMLA__V1__CODE__CODE_INVALID_ARGUMENT);
	assert_int_equal(report(node, 1, generation + 1, QMLA__V1__CODE__CODE_CORRUPT, &code),
			 QMLA_OK);
	assert_int_equal(code, QMLA__V1__CODE__CODE_STALE);
	assert_int_equal(report(node, 1, generation, QMLA__V1__CODE__CODE_CORRUPT, &code), QMLA_OK);
	assert_int_equal(code, OK);
	assert_int_equal(node_has(node, 1), NOT_FOUND);
	assert_int_equal(report(node, 1, generation, QMLA__V1__CODE__CODE_CORRUPT, &code), QMLA_OK);
	assert_int_equal(code, NOT_FOUND);
	assert_int_equal(node_put(node, 1), OK);
	assert_int_equal(node_release(node, r->lease), OK);
	node->incarnation ^= 1;
	assert_int_equal(report(node, 1, generation, QMLA__V1__CODE__CODE_CORRUPT, &code),
			 QMLA_ERR_PEER_RESTARTED);
	node->incarnation ^= 1;
	qmp_message_free(&r->base);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(removal_answers_key_by_key),
		T(pins_have_owners_and_ends),
		T(a_forgotten_pin_ends),
		T(a_reported_block_is_dropped_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
