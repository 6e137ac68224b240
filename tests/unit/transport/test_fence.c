/* SPDX-License-Identifier: Apache-2.0 */
/* Fences against late writers and readers, for each back end: argv[1] is its name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "owner.h"

#define MIB (UINT64_C(1) << 20)

static const char *transport;

static qmla_status_t run_one(struct owner *owner, struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	return qmt_endpoint_run(owner->ops, endpoint, op, 1);
}

struct late_writer {
	struct owner *owner;
	unsigned ok, refused, cut, other;
	atomic_bool stop;
};

static struct qmt_endpoint *connect_again(struct owner *owner, struct qmt_endpoint *endpoint)
{
	struct qmt_endpoint *made = NULL;

	owner->ops->endpoint_destroy(endpoint);
	if (owner_try(owner, &owner->address, qmc_clock_after(5 * QMC_NS_PER_S), &made) != QMLA_OK)
		return NULL;
	return made;
}

/* Writes the same block again and again, whatever the answer is. */
static void *write_on(void *argument)
{
	struct late_writer *writer = argument;
	struct owner *owner = writer->owner;
	uint8_t *local = malloc(MIB);
	struct qmt_endpoint *endpoint = NULL;

	memset(local, 0xbb, MIB);
	if (owner_try(owner, &owner->address, qmc_clock_after(5 * QMC_NS_PER_S), &endpoint) !=
	    QMLA_OK)
		endpoint = NULL;
	while (endpoint && !atomic_load(&writer->stop)) {
		struct qmt_op op = owner_op(owner, QMT_WRITE, 0, local, MIB);

		switch (qmt_endpoint_run(owner->ops, endpoint, &op, 1)) {
		case QMLA_OK:
			writer->ok++;
			break;
		case QMLA_ERR_PERMISSION:
			writer->refused++;
			break;
		case QMLA_ERR_UNAVAILABLE:
			/* Where the device cannot be told otherwise the fence cuts the connection.
			 */
			writer->cut++;
			endpoint = connect_again(owner, endpoint);
			break;
		default:
			writer->other++;
			atomic_store(&writer->stop, true);
		}
	}
	owner->ops->endpoint_destroy(endpoint);
	free(local);
	return NULL;
}

static void a_late_writer_is_fenced(void **state)
{
	struct owner owner;
	struct late_writer writer = {.owner = &owner};
	uint8_t capability[QMT_CAPABILITY_BYTES];
	pthread_t thread;
	uint8_t *memory;

	(void)state;
	owner_start(&owner, transport, MIB);
	memory = owner.memory.base;
	assert_int_equal(pthread_create(&thread, NULL, write_on, &writer), 0);
	for (int i = 0; i < 5000 && owner_snapshot(&owner).finished_ok < 20; i++)
		sleep_ms(1);
	memset(capability, 1, sizeof(capability));
	/* authorize keeps saying yes: the fence alone stops the writer. */
	assert_int_equal(owner.ops->server_fence(owner.server, capability), QMLA_OK);
	assert_int_equal(owner_in_flight(&owner), 0);
	memset(memory, 0x77, MIB);
	sleep_ms(200);
	for (size_t i = 0; i < MIB; i++)
		assert_int_equal(memory[i], 0x77);
	atomic_store(&writer.stop, true);
	pthread_join(thread, NULL);
	assert_true(writer.ok >= 20);
	assert_true(writer.refused > 0);
	assert_int_equal(writer.other, 0);
	assert_in_range(writer.cut, 0, owner.ops->one_sided ? 1 : 0);
	/* Another capability is not concerned. */
	{
		struct qmt_endpoint *endpoint = owner_connect(&owner);
		uint8_t byte = 5;
		struct qmt_op op = owner_op(&owner, QMT_WRITE, 9, &byte, 1);

		memset(op.capability, 2, sizeof(op.capability));
		assert_int_equal(run_one(&owner, endpoint, &op), QMLA_OK);
		assert_int_equal(memory[9], 5);
		owner.ops->endpoint_destroy(endpoint);
	}
	owner_stop(&owner);
}

static void a_fenced_read_is_never_reported_as_good(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op op, *completed = NULL;
	uint8_t *local = malloc(16 * MIB);

	(void)state;
	/* No fence stops a one-sided read: its reader judges by lease and generation. */
	if (qmt_transport_find(transport)->one_sided) {
		free(local);
		skip();
	}
	owner_start(&owner, transport, 16 * MIB);
	endpoint = owner_connect(&owner);
	op = owner_op(&owner, QMT_READ, 0, local, 16 * MIB);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_OK);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, 0, &completed), QMLA_ERR_DEADLINE);
	for (int i = 0; i < 5000 && owner_in_flight(&owner) == 0; i++)
		sleep_ms(1);
	assert_int_equal(owner_in_flight(&owner), 1);
	assert_int_equal(owner.ops->server_fence(owner.server, op.capability), QMLA_OK);
	assert_int_equal(owner_in_flight(&owner), 0);
	memset(owner.memory.base, 0x42, 16 * MIB); /* the slot's next user */
	assert_int_equal(owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &completed), QMLA_OK);
	assert_ptr_equal(completed, &op);
	assert_int_equal(op.status, QMLA_ERR_UNAVAILABLE);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

static void fences_are_cheap_when_nothing_moves(void **state)
{
	struct owner owner;
	uint8_t capability[QMT_CAPABILITY_BYTES] = {0};
	qmc_time_t begin;

	(void)state;
	owner_start(&owner, transport, MIB);
	begin = qmc_clock_now();
	for (uint32_t i = 0; i < 100000; i++) {
		memcpy(capability, &i, sizeof(i));
		assert_int_equal(owner.ops->server_fence(owner.server, capability), QMLA_OK);
	}
	assert_true(qmc_clock_now() - begin < 5 * QMC_NS_PER_S);
	owner_stop(&owner);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(a_late_writer_is_fenced),
		CASE(a_fenced_read_is_never_reported_as_good),
		CASE(fences_are_cheap_when_nothing_moves),
	};

	transport = argc > 1 ? argv[1] : "tcp";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
