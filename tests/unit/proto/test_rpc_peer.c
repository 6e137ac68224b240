/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that stop, die and come back. Each is a process of its own. */
#include "cmocka_all.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "fixture.h"

#define ECHO    "/test.Unary/Echo"
#define TIMEOUT (20 * QMC_NS_PER_S)

struct peer {
	pid_t pid;
	int input;
	uint16_t port;
};

/* Not fork: gRPC's threads are running, and only exec makes that safe. */
static void peer_start(struct peer *peer, uint16_t port)
{
	char text[8];
	char *argv[] = {(char *)(uintptr_t)PEER_PROGRAM, text, NULL};
	posix_spawn_file_actions_t actions;
	int in[2], out[2];
	FILE *file;
	unsigned bound = 0;

	snprintf(text, sizeof(text), "%u", port);
	assert_int_equal(pipe2(in, 0) | pipe2(out, 0), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
	posix_spawn_file_actions_addclose(&actions, in[1]);
	posix_spawn_file_actions_addclose(&actions, out[0]);
	assert_int_equal(posix_spawn(&peer->pid, argv[0], &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(in[0]);
	close(out[1]);
	peer->input = in[1];
	file = fdopen(out[0], "r");
	assert_int_equal(fscanf(file, "%u", &bound), 1);
	fclose(file);
	peer->port = (uint16_t)bound;
}

/* Returns when every thread has stopped: SIGSTOP takes a moment to arrive. */
static void peer_stop(struct peer *peer)
{
	int how;

	kill(peer->pid, SIGSTOP);
	assert_int_equal(waitpid(peer->pid, &how, WUNTRACED), peer->pid);
	assert_true(WIFSTOPPED(how));
}

static void peer_kill(struct peer *peer)
{
	kill(peer->pid, SIGKILL);
	waitpid(peer->pid, NULL, 0);
	close(peer->input);
}

static qmla_status_t echo(struct qmp_channel *channel, int64_t timeout_ns)
{
	return fixture_call(channel, ECHO, 1, 16, 0, timeout_ns, NULL, NULL);
}

static void test_a_call_to_a_stopped_peer_ends_at_its_deadline(void **state)
{
	struct qmp_channel *channel;
	struct peer peer;
	qmc_time_t begin;

	(void)state;
	peer_start(&peer, 0);
	channel = fixture_connect(peer.port);
	assert_int_equal(echo(channel, TIMEOUT), QMLA_OK);
	peer_stop(&peer);
	begin = qmc_clock_now();
	assert_int_equal(echo(channel, MS(300)), QMLA_ERR_DEADLINE);
	assert_in_range(qmc_clock_now() - begin, MS(250), MS(1000));
	kill(peer.pid, SIGCONT);
	assert_int_equal(echo(channel, TIMEOUT), QMLA_OK);
	qmp_channel_destroy(channel);
	peer_kill(&peer);
}

/* The first connection to a peer that accepts but never speaks. */
static void test_a_peer_stopped_from_the_start(void **state)
{
	struct qmp_channel *channel;
	struct peer peer;
	qmc_time_t begin;

	(void)state;
	peer_start(&peer, 0);
	peer_stop(&peer);
	channel = fixture_connect(peer.port);
	begin = qmc_clock_now();
	assert_int_equal(echo(channel, MS(300)), QMLA_ERR_DEADLINE);
	assert_true(qmc_clock_now() - begin < MS(1000));
	begin = qmc_clock_now();
	/* Without a short deadline the connection attempt itself gives up. */
	assert_int_equal(echo(channel, TIMEOUT), QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < MS(5000));
	qmp_channel_destroy(channel);
	peer_kill(&peer);
}

/*
 * Pings go on although nothing is sent: the default would stop after two. The
 * stream is idle for several keepalive periods first.
 */
static void test_an_idle_stream_notices_a_stopped_peer(void **state)
{
	struct qmp_channel *channel;
	struct qmp_stream *stream;
	ProtobufCMessage *message = NULL;
	struct qmp_error error;
	struct peer peer;
	qmc_time_t begin;

	(void)state;
	peer_start(&peer, 0);
	channel = fixture_connect(peer.port);
	assert_int_equal(fixture_open(channel, "/test.Stream/Idle", 0, -1, &stream), QMLA_OK);
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, &error),
			 QMLA_OK);
	qmp_message_free(message);
	/* Longer than four pings: were they too many for the server, it would say so here. */
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(MS(4500)), &message, &error),
			 QMLA_ERR_DEADLINE);
	peer_stop(&peer);
	begin = qmc_clock_now();
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, &error),
			 QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < MS(3000));
	assert_non_null(strstr(error.detail, "keepalive"));
	qmp_stream_close(stream);
	qmp_channel_destroy(channel);
	peer_kill(&peer);
}

static void test_a_killed_peer_is_noticed_at_once(void **state)
{
	struct qmp_channel *channel;
	struct qmp_stream *stream;
	ProtobufCMessage *message = NULL;
	struct peer peer;
	qmc_time_t begin;

	(void)state;
	peer_start(&peer, 0);
	channel = fixture_connect(peer.port);
	assert_int_equal(fixture_open(channel, "/test.Stream/Idle", 0, -1, &stream), QMLA_OK);
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, NULL),
			 QMLA_OK);
	qmp_message_free(message);
	peer_kill(&peer);
	begin = qmc_clock_now();
	assert_int_equal(qmp_stream_next(stream, qmc_clock_after(TIMEOUT), &message, NULL),
			 QMLA_ERR_UNAVAILABLE);
	assert_int_equal(echo(channel, TIMEOUT), QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < MS(1000));
	qmp_stream_close(stream);
	qmp_channel_destroy(channel);
}

/* Even after the back-off had time to grow to its full length. */
static void test_a_restarted_peer_is_reached_within_a_second(void **state)
{
	struct qmp_channel *channel;
	struct peer peer;
	qmc_time_t begin;
	uint16_t port;

	(void)state;
	peer_start(&peer, 0);
	port = peer.port;
	channel = fixture_connect(port);
	assert_int_equal(echo(channel, TIMEOUT), QMLA_OK);
	peer_kill(&peer);
	for (int i = 0; i < 40; i++) {
		assert_int_equal(echo(channel, MS(500)), QMLA_ERR_UNAVAILABLE);
		qmc_clock_sleep_until(qmc_clock_after(MS(50)));
	}
	peer_start(&peer, port);
	begin = qmc_clock_now();
	while (echo(channel, MS(500)) != QMLA_OK && qmc_clock_now() - begin < TIMEOUT)
		qmc_clock_sleep_until(qmc_clock_after(MS(10)));
	assert_true(qmc_clock_now() - begin < MS(1500));
	qmp_channel_destroy(channel);
	peer_kill(&peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_call_to_a_stopped_peer_ends_at_its_deadline),
		cmocka_unit_test(test_a_peer_stopped_from_the_start),
		cmocka_unit_test(test_an_idle_stream_notices_a_stopped_peer),
		cmocka_unit_test(test_a_killed_peer_is_noticed_at_once),
		cmocka_unit_test(test_a_restarted_peer_is_reached_within_a_second),
	};

	return cmocka_run_group_tests_name("rpc_peer", tests, NULL, NULL);
}
