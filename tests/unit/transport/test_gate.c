/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "transport/gate.h"

__extension__ typedef unsigned __int128 wide;

struct record {
	qmla_status_t policy;
	atomic_uint authorized, finished;
	qmla_status_t last;
	uint64_t token;
	struct qmt_gate *gate; /* when set, authorize waits for `go` */
	atomic_bool inside, go;
};

static void sleep_a_little(void)
{
	qmc_clock_sleep_until(qmc_clock_after(QMC_NS_PER_MS));
}

static qmla_status_t authorize(void *user, const struct qmt_access_request *request,
			       uint64_t *token)
{
	struct record *record = user;

	(void)request;
	if (record->gate) {
		atomic_store(&record->inside, true);
		while (!atomic_load(&record->go))
			sleep_a_little();
	}
	atomic_fetch_add(&record->authorized, 1);
	*token = 4711;
	return record->policy;
}

static void finished(void *user, const struct qmt_access_request *request, uint64_t token,
		     qmla_status_t status)
{
	struct record *record = user;

	(void)request;
	record->token = token;
	record->last = status;
	atomic_fetch_add(&record->finished, 1);
}

static uint8_t pool[4096];

static struct qmt_gate *gate_of(struct record *record)
{
	struct qmt_server_callbacks callbacks = {
		.user = record, .authorize = authorize, .finished = finished};
	struct qmt_memory memory = {.base = pool, .bytes = sizeof(pool), .fd = -1};
	struct qmt_gate *gate = NULL;

	assert_int_equal(qmt_gate_create(&callbacks, &gate), QMLA_OK);
	assert_int_equal(qmt_gate_register(gate, &memory, 1), QMLA_OK);
	return gate;
}

static struct qmt_flight flight_of(uint64_t region, uint64_t offset, uint64_t length)
{
	struct qmt_flight flight = {.request = {.access = QMT_WRITE,
						.region = region,
						.offset = offset,
						.length = length,
						.capability = {1, 2, 3}},
				    .wake_fd = -1};

	return flight;
}

static void an_access_is_finished_with_its_token(void **state)
{
	struct record record = {0};
	struct qmt_gate *gate = gate_of(&record);
	struct qmt_flight flight = flight_of(1, 96, 1000);
	struct qmt_server_stats stats = {.peers = 42};

	(void)state;
	assert_int_equal(qmt_gate_begin(gate, &flight), QMLA_OK);
	assert_ptr_equal(flight.memory, pool + 96);
	assert_ptr_equal(flight.region->base, pool);
	assert_int_equal(record.finished, 0);
	qmt_gate_end(gate, &flight, QMLA_ERR_UNAVAILABLE, 600);
	assert_int_equal(record.finished, 1);
	assert_int_equal(record.token, 4711);
	assert_int_equal(record.last, QMLA_ERR_UNAVAILABLE);
	assert_int_equal(qmt_gate_begin(gate, &flight), QMLA_OK);
	qmt_gate_end(gate, &flight, QMLA_OK, 1000);
	record.policy = QMLA_ERR_LEASE_EXPIRED;
	assert_int_equal(qmt_gate_begin(gate, &flight), QMLA_ERR_LEASE_EXPIRED);
	assert_int_equal(record.finished, 2);
	qmt_gate_stats(gate, &stats);
	assert_int_equal(stats.peers, 42);
	assert_int_equal(stats.writes, 1);
	assert_int_equal(stats.bytes_written, 1600);
	assert_int_equal(stats.reads + stats.bytes_read, 0);
	assert_int_equal(stats.denied, 1);
	qmt_gate_destroy(gate);
}

/* No combination of corner values gets past the range check; authorize is not even asked. */
static void nothing_outside_a_region_is_reached(void **state)
{
	static const uint64_t corners[] = {0,
					   1,
					   4095,
					   4096,
					   4097,
					   UINT64_C(1) << 32,
					   UINT64_C(1) << 63,
					   UINT64_MAX - 4096,
					   UINT64_MAX - 1,
					   UINT64_MAX};
	const size_t n = sizeof(corners) / sizeof(corners[0]);
	struct record record = {0};
	struct qmt_gate *gate = gate_of(&record);

	(void)state;
	for (size_t i = 0; i < n * n; i++) {
		struct qmt_flight flight = flight_of(1, corners[i % n], corners[i / n]);
		wide end = (wide)corners[i % n] + corners[i / n];
		bool inside = corners[i / n] > 0 && end <= sizeof(pool);
		unsigned asked = record.authorized;
		qmla_status_t status = qmt_gate_begin(gate, &flight);

		assert_int_equal(status, inside ? QMLA_OK : QMLA_ERR_INVALID_ARGUMENT);
		assert_int_equal(record.authorized - asked, inside ? 1 : 0);
		if (status == QMLA_OK) {
			assert_true(flight.memory >= pool);
			assert_true(flight.memory + corners[i / n] <= pool + sizeof(pool));
			qmt_gate_end(gate, &flight, QMLA_OK, 0);
		}
	}
	qmt_gate_destroy(gate);
}

static void regions_are_checked(void **state)
{
	struct record record = {0};
	struct qmt_gate *gate = gate_of(&record);
	struct qmt_memory memory = {.base = pool, .bytes = 16, .fd = -1};
	struct qmt_flight flight = flight_of(2, 0, 1);

	(void)state;
	assert_int_equal(qmt_gate_register(gate, &memory, 1), QMLA_ERR_ALREADY_EXISTS);
	assert_int_equal(qmt_gate_begin(gate, &flight), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmt_gate_register(gate, &memory, 2), QMLA_OK);
	assert_int_equal(qmt_gate_begin(gate, &flight), QMLA_OK);
	qmt_gate_end(gate, &flight, QMLA_OK, 1);
	memory.bytes = 0;
	assert_int_equal(qmt_gate_register(gate, &memory, 3), QMLA_ERR_INVALID_ARGUMENT);
	memory.bytes = UINT64_MAX;
	assert_int_equal(qmt_gate_register(gate, &memory, 3), QMLA_ERR_INVALID_ARGUMENT);
	memory.base = NULL;
	memory.bytes = 16;
	assert_int_equal(qmt_gate_register(gate, &memory, 3), QMLA_ERR_INVALID_ARGUMENT);
	qmt_gate_destroy(gate);
}

static void fenced_capabilities_are_refused(void **state)
{
	struct record record = {0};
	struct qmt_gate *gate = gate_of(&record);
	struct qmt_flight flight = flight_of(1, 0, 1);

	(void)state;
	qmt_gate_fence(gate, flight.request.capability);
	assert_int_equal(qmt_gate_begin(gate, &flight), QMLA_ERR_PERMISSION);
	assert_int_equal(record.authorized, 0);
	flight.request.capability[15] ^= 1;
	assert_int_equal(qmt_gate_begin(gate, &flight), QMLA_OK);
	qmt_gate_end(gate, &flight, QMLA_OK, 1);
	qmt_gate_destroy(gate);
}

struct fencing {
	struct qmt_gate *gate;
	uint8_t capability[QMT_CAPABILITY_BYTES];
	atomic_bool returned;
};

static void *fence(void *argument)
{
	struct fencing *fencing = argument;

	qmt_gate_fence(fencing->gate, fencing->capability);
	atomic_store(&fencing->returned, true);
	return NULL;
}

static void a_fence_waits_for_the_end(void **state)
{
	struct record record = {0};
	struct fencing fencing = {.gate = gate_of(&record)};
	struct qmt_flight flight = flight_of(1, 0, 10), other = flight_of(1, 0, 10);
	pthread_t thread;
	eventfd_t woken = 0;

	(void)state;
	flight.wake_fd = eventfd(0, EFD_CLOEXEC);
	other.request.capability[5] = 9;
	memcpy(fencing.capability, flight.request.capability, QMT_CAPABILITY_BYTES);
	assert_int_equal(qmt_gate_begin(fencing.gate, &flight), QMLA_OK);
	assert_int_equal(qmt_gate_begin(fencing.gate, &other), QMLA_OK);
	assert_int_equal(pthread_create(&thread, NULL, fence, &fencing), 0);
	assert_int_equal(eventfd_read(flight.wake_fd, &woken), 0); /* blocks until it asks */
	assert_true(qmt_flight_is_fenced(&flight));
	assert_false(qmt_flight_is_fenced(&other));
	for (int i = 0; i < 20; i++)
		sleep_a_little();
	assert_false(atomic_load(&fencing.returned));
	qmt_gate_end(fencing.gate, &flight, QMLA_ERR_PERMISSION, 3);
	pthread_join(thread, NULL);
	assert_true(atomic_load(&fencing.returned));
	assert_int_equal(record.finished, 1);
	qmt_gate_end(fencing.gate, &other, QMLA_OK, 10);
	close(flight.wake_fd);
	qmt_gate_destroy(fencing.gate);
}

static void *begin(void *argument)
{
	struct record *record = argument;
	static struct qmt_flight flight;

	flight = flight_of(1, 0, 10);
	flight.wake_fd = eventfd(0, EFD_CLOEXEC);
	record->last = qmt_gate_begin(record->gate, &flight);
	close(flight.wake_fd);
	return (void *)(intptr_t)record->last;
}

/* authorize said yes to a request that a fence overtook: it must not move a byte. */
static void a_fence_during_authorize_wins(void **state)
{
	struct record record = {0};
	struct fencing fencing = {.gate = gate_of(&record), .capability = {1, 2, 3}};
	pthread_t beginning, thread;
	void *result;

	(void)state;
	record.gate = fencing.gate;
	assert_int_equal(pthread_create(&beginning, NULL, begin, &record), 0);
	while (!atomic_load(&record.inside))
		sleep_a_little();
	assert_int_equal(pthread_create(&thread, NULL, fence, &fencing), 0);
	for (int i = 0; i < 20; i++)
		sleep_a_little();
	assert_false(atomic_load(&fencing.returned));
	atomic_store(&record.go, true);
	pthread_join(beginning, &result);
	pthread_join(thread, NULL);
	assert_int_equal((intptr_t)result, QMLA_ERR_PERMISSION);
	assert_int_equal(record.authorized, 1);
	assert_int_equal(record.finished, 1); /* exactly once, since it was allowed */
	qmt_gate_destroy(fencing.gate);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_access_is_finished_with_its_token),
		cmocka_unit_test(nothing_outside_a_region_is_reached),
		cmocka_unit_test(regions_are_checked),
		cmocka_unit_test(fenced_capabilities_are_refused),
		cmocka_unit_test(a_fence_waits_for_the_end),
		cmocka_unit_test(a_fence_during_authorize_wins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
