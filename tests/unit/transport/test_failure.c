/* SPDX-License-Identifier: Apache-2.0 */
/* Peers and servers that are killed or stopped, against each back end: argv[1] is its name. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "owner.h"

#define MIB (UINT64_C(1) << 20)

static const char *transport;

static qmla_status_t run_one(struct owner *owner, struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	return qmt_endpoint_run(owner->ops, endpoint, op, 1);
}

/* A server in a process of its own; the parent gets its address and handle. */
static int serve(int to_parent, const char *name)
{
	struct owner owner;
	char ignored;

	if (!owner_create(&owner, name, 16 * MIB, 0, 0))
		return 1;
	fill_pattern(owner.memory.base, 16 * MIB, 3);
	if (!tell(to_parent, &owner.address, sizeof(owner.address)) ||
	    !tell(to_parent, &owner.handle, sizeof(owner.handle)) ||
	    !tell(to_parent, owner.directory, sizeof(owner.directory)))
		return 2;
	(void)recv(to_parent, &ignored, 1, 0); /* until the parent closes its end */
	owner.ops->server_destroy(owner.server);
	return owner_in_flight(&owner) ? 3 : 0;
}

struct remote {
	struct owner owner; /* address and handle only */
	pid_t child;
	int to_child;
};

static void remote_start(struct remote *remote)
{
	memset(remote, 0, sizeof(*remote));
	remote->child = child_start(serve, transport, &remote->to_child);
	remote->owner.ops = qmt_transport_find(transport);
	assert_true(hear(remote->to_child, &remote->owner.address, sizeof(remote->owner.address)));
	assert_true(hear(remote->to_child, &remote->owner.handle, sizeof(remote->owner.handle)));
	assert_true(
		hear(remote->to_child, remote->owner.directory, sizeof(remote->owner.directory)));
}

static void remove_directory(struct remote *remote)
{
	char command[128];

	if (!remote->owner.directory[0])
		return;
	snprintf(command, sizeof(command), "rm -rf %s", remote->owner.directory);
	assert_int_equal(system(command), 0);
}

static void a_stopped_server_costs_one_deadline(void **state)
{
	struct remote remote;
	struct qmt_endpoint *endpoint, *late = NULL;
	struct qmt_op ops[3], *completed;
	uint8_t *local = malloc(3 * MIB);
	qmc_time_t begin;

	(void)state;
	remote_start(&remote);
	endpoint = owner_connect(&remote.owner);
	ops[0] = owner_op(&remote.owner, QMT_READ, 0, local, MIB);
	assert_int_equal(run_one(&remote.owner, endpoint, &ops[0]), QMLA_OK);
	child_stop(remote.child);
	begin = qmc_clock_now();
	for (size_t i = 0; i < 3; i++) {
		ops[i] = owner_op(&remote.owner, i == 1 ? QMT_WRITE : QMT_READ, 0, local + i * MIB,
				  MIB);
		if (i == 2)
			ops[i].deadline = begin + 300 * QMC_NS_PER_MS;
		assert_int_equal(remote.owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(
			remote.owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &completed),
			QMLA_OK);
	assert_in_range(qmc_clock_now() - begin, 290 * QMC_NS_PER_MS, 8 * QMC_NS_PER_S);
	assert_int_equal(ops[0].status, QMLA_ERR_UNAVAILABLE);
	assert_int_equal(ops[1].status, QMLA_ERR_UNAVAILABLE);
	assert_int_equal(ops[2].status, QMLA_ERR_DEADLINE);
	assert_false(remote.owner.ops->endpoint_alive(endpoint));
	remote.owner.ops->endpoint_destroy(endpoint);
	/* A new connection is accepted by the kernel, but nobody shakes hands. */
	begin = qmc_clock_now();
	assert_int_equal(remote.owner.ops->endpoint_create(&remote.owner.address,
							   qmc_clock_after(100 * QMC_NS_PER_MS),
							   &late),
			 QMLA_ERR_DEADLINE);
	assert_true(qmc_clock_now() - begin < 3 * QMC_NS_PER_S);
	kill(remote.child, SIGCONT);
	endpoint = owner_connect(&remote.owner);
	ops[0] = owner_op(&remote.owner, QMT_READ, 0, local, MIB);
	assert_int_equal(run_one(&remote.owner, endpoint, &ops[0]), QMLA_OK);
	remote.owner.ops->endpoint_destroy(endpoint);
	assert_int_equal(child_join(remote.child, remote.to_child), 0);
	remove_directory(&remote);
	free(local);
}

static void a_killed_server_is_noticed_at_once(void **state)
{
	struct remote remote;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[2], *completed;
	uint8_t *local = malloc(MIB);
	qmc_time_t begin;

	(void)state;
	remote_start(&remote);
	endpoint = owner_connect(&remote.owner);
	child_stop(remote.child);
	for (size_t i = 0; i < 2; i++) {
		ops[i] = owner_op(&remote.owner, QMT_READ, 0, local, MIB);
		assert_int_equal(remote.owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
	assert_int_equal(remote.owner.ops->endpoint_wait(endpoint, 0, &completed),
			 QMLA_ERR_DEADLINE);
	begin = qmc_clock_now();
	child_kill(remote.child, remote.to_child);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(
			remote.owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &completed),
			QMLA_OK);
		assert_int_equal(completed->status, QMLA_ERR_UNAVAILABLE);
	}
	assert_true(qmc_clock_now() - begin < 3 * QMC_NS_PER_S);
	remote.owner.ops->endpoint_destroy(endpoint);
	assert_int_equal(remote.owner.ops->endpoint_create(
				 &remote.owner.address, qmc_clock_after(QMC_NS_PER_S), &endpoint),
			 QMLA_ERR_UNAVAILABLE);
	remove_directory(&remote);
	free(local);
}

/* A client that begins one access and then stands still. */
static int begin_access(int to_parent, enum qmt_access access)
{
	const char *name = transport;
	struct owner view = {.ops = qmt_transport_find(name)};
	struct qmt_endpoint *endpoint = NULL;
	struct qmt_op op, *completed = NULL;
	char go = 'g';
	uint8_t *local = calloc(1, 16 * MIB);

	if (!local || !hear(to_parent, &view.address, sizeof(view.address)) ||
	    !hear(to_parent, &view.handle, sizeof(view.handle)))
		return 1;
	if (view.ops->endpoint_create(&view.address, qmc_clock_after(5 * QMC_NS_PER_S),
				      &endpoint) != QMLA_OK)
		return 2;
	op = owner_op(&view, access, 0, local, 16 * MIB);
	if (view.ops->endpoint_post(endpoint, &op) != QMLA_OK)
		return 3;
	(void)view.ops->endpoint_wait(endpoint, 0, &completed);
	if (completed || !tell(to_parent, &go, 1))
		return 4;
	for (;;)
		pause();
}

static int begin_read(int to_parent, const char *name)
{
	(void)name;
	return begin_access(to_parent, QMT_READ);
}

static int begin_write(int to_parent, const char *name)
{
	(void)name;
	return begin_access(to_parent, QMT_WRITE);
}

/* Starts a server here and lets the child begin its access. */
static void child_begins(struct owner *owner, int to_child, int64_t idle_timeout_ns)
{
	char go;

	owner_start_with(owner, transport, 16 * MIB, 0, idle_timeout_ns);
	assert_true(tell(to_child, &owner->address, sizeof(owner->address)));
	assert_true(tell(to_child, &owner->handle, sizeof(owner->handle)));
	assert_true(hear(to_child, &go, 1));
	for (int i = 0; i < 5000 && owner_in_flight(owner) == 0; i++)
		sleep_ms(1);
	sleep_ms(50);
	assert_int_equal(owner_in_flight(owner), 1);
}

static void a_peer_killed_inside_an_access_finishes_it(enum qmt_access access)
{
	int to_child;
	pid_t child =
		child_start(access == QMT_READ ? begin_read : begin_write, transport, &to_child);
	struct owner owner;

	child_begins(&owner, to_child, 0);
	child_kill(child, to_child);
	assert_true(owner_settles(&owner, 5000));
	assert_int_equal(owner_snapshot(&owner).finished_failed, 1);
	assert_int_equal(owner_snapshot(&owner).last_finished, QMLA_ERR_UNAVAILABLE);
	owner_stop(&owner);
}

static void a_peer_killed_inside_a_read_finishes_it(void **state)
{
	(void)state;
	a_peer_killed_inside_an_access_finishes_it(QMT_READ);
}

static void a_peer_killed_inside_a_write_finishes_it(void **state)
{
	(void)state;
	/* Through shared memory the server copies, and no client is inside of it. */
	if (strcmp(transport, "shm") == 0)
		skip();
	a_peer_killed_inside_an_access_finishes_it(QMT_WRITE);
}

static void a_stopped_peer_is_dropped_and_holds_up_nobody(enum qmt_access access)
{
	int to_child;
	pid_t child =
		child_start(access == QMT_READ ? begin_read : begin_write, transport, &to_child);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local = malloc(16 * MIB);

	child_begins(&owner, to_child, 500 * QMC_NS_PER_MS);
	child_stop(child);
	/* Two connections at least: one shares the stopped peer's thread. */
	for (int i = 0; i < 4; i++) {
		struct qmt_op op = owner_op(&owner, QMT_READ, 0, local, 16 * MIB);

		endpoint = owner_connect(&owner);
		assert_int_equal(run_one(&owner, endpoint, &op), QMLA_OK);
		owner.ops->endpoint_destroy(endpoint);
	}
	assert_true(owner_settles(&owner, 10000));
	assert_int_equal(owner_snapshot(&owner).finished_failed, 1);
	assert_int_equal(owner_snapshot(&owner).last_finished, QMLA_ERR_DEADLINE);
	child_kill(child, to_child);
	owner_stop(&owner);
	free(local);
}

static void a_peer_stopped_inside_a_read_holds_up_nobody(void **state)
{
	(void)state;
	a_stopped_peer_is_dropped_and_holds_up_nobody(QMT_READ);
}

static void a_peer_stopped_inside_a_write_holds_up_nobody(void **state)
{
	(void)state;
	if (strcmp(transport, "shm") == 0)
		skip();
	a_stopped_peer_is_dropped_and_holds_up_nobody(QMT_WRITE);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, remember_descriptors, check_descriptors)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(a_stopped_server_costs_one_deadline),
		CASE(a_killed_server_is_noticed_at_once),
		CASE(a_peer_killed_inside_a_read_finishes_it),
		CASE(a_peer_killed_inside_a_write_finishes_it),
		CASE(a_peer_stopped_inside_a_read_holds_up_nobody),
		CASE(a_peer_stopped_inside_a_write_holds_up_nobody),
	};

	transport = argc > 1 ? argv[1] : "tcp";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
