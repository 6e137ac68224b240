/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/endpoint.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"
#include "transport/verbs/endpoint_internal.h"
#include "transport/wire.h"

#define SPIN_NS     (20 * QMC_NS_PER_US) /* less than going to sleep and waking costs */
#define GOODBYE_NS  (100 * QMC_NS_PER_MS)
#define REPORT_NS   (50 * QMC_NS_PER_MS)
#define PROBE_NS    (200 * QMC_NS_PER_MS)
#define SPINS_IDLE  4  /* in vain, then it is left */
#define SPINS_RETRY 64 /* for that many sleeps */
#define EVENTS_MAX  64

#define REFILL_OPS   8
#define REFILL_BYTES (UINT64_C(64) << 10)

/* ---- the end ---- */

/*
 * Error state first, so that everything posted comes back flushed; then the queue pair
 * goes, and with it the device's last use of any memory.
 */
static void close_rails(struct qmt_verbs_endpoint *endpoint)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		struct qmt_verbs_rail *rail = &endpoint->rails[i];

		if (rail->used)
			qmt_qp_fail(&rail->qp);
	}
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		struct qmt_verbs_rail *rail = &endpoint->rails[i];

		if (!rail->used)
			continue;
		qmt_qp_drain(&rail->qp);
		qmt_qp_destroy(&rail->qp, NULL);
		qmt_monitor_remove(endpoint->domain->monitor, &rail->watched);
		qmt_mail_destroy(endpoint->domain->api, &rail->mail);
		rail->used = rail->up = false;
	}
}

void qmt_verbs_die(struct qmt_verbs_endpoint *endpoint, const char *why)
{
	if (!endpoint->alive)
		return;
	endpoint->alive = false;
	qmc_warn_limited("verbs", "connection %016llx is over: %s",
			 (unsigned long long)qmt_connection_number(endpoint->connection), why);
	close_rails(endpoint);
	qmt_queue_fail(&endpoint->queue, qmc_clock_now(), QMLA_ERR_UNAVAILABLE);
}

static struct qmt_verbs_rail *first_up(struct qmt_verbs_endpoint *endpoint)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (endpoint->rails[i].up)
			return &endpoint->rails[i];
	}
	return NULL;
}

static bool report(struct qmt_verbs_endpoint *endpoint, enum qmt_message_kind kind)
{
	struct qmt_verbs_rail *rail = first_up(endpoint);
	const struct qmt_message message = {
		.kind = kind, .offset = endpoint->reads_done, .length = endpoint->bytes_done};

	if (!rail || !qmt_verbs_tell(endpoint, rail, &message))
		return false;
	endpoint->reads_done = endpoint->bytes_done = 0;
	endpoint->reported = qmc_clock_now();
	qmt_verbs_flush(endpoint);
	return true;
}

static bool is_drained(const struct qmt_verbs_endpoint *endpoint)
{
	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (endpoint->rails[i].head != endpoint->rails[i].tail)
			return false;
	}
	return true;
}

/* The server frees its side at once instead of finding out. Not worth waiting long for. */
static void say_goodbye(struct qmt_verbs_endpoint *endpoint)
{
	qmc_time_t deadline = qmc_clock_after(GOODBYE_NS);

	if (!endpoint->alive || !report(endpoint, QMT_MESSAGE_BYE))
		return;
	while (endpoint->alive && !is_drained(endpoint) && qmc_clock_now() < deadline) {
		if (!qmt_verbs_poll(endpoint))
			(void)poll(NULL, 0, 1);
	}
}

void qmt_verbs_endpoint_destroy(struct qmt_endpoint *base)
{
	struct qmt_verbs_endpoint *endpoint = qmt_verbs_of(base);

	if (!endpoint)
		return;
	say_goodbye(endpoint);
	endpoint->alive = false;
	if (endpoint->domain) {
		close_rails(endpoint);
		qmt_bounce_fini(endpoint);
		for (size_t i = 0; i < endpoint->area_count; i++)
			qmt_domain_unregister(endpoint->domain, endpoint->areas[i]);
	}
	qmt_domain_put(endpoint->domain);
	if (endpoint->wake_fd >= 0)
		close(endpoint->wake_fd);
	free(endpoint);
}

/* ---- memory and operations ---- */

qmla_status_t qmt_verbs_endpoint_register(struct qmt_endpoint *base,
					  const struct qmt_memory *memory)
{
	struct qmt_verbs_endpoint *endpoint = qmt_verbs_of(base);
	qmla_status_t status;

	if (!memory->base || memory->bytes == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (endpoint->area_count == QMT_AREAS_MAX)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	status = qmt_domain_register(endpoint->domain, memory,
				     &endpoint->areas[endpoint->area_count]);
	if (status == QMLA_OK)
		endpoint->area_count++;
	return status;
}

qmla_status_t qmt_verbs_endpoint_post(struct qmt_endpoint *base, struct qmt_op *op)
{
	struct qmt_verbs_endpoint *endpoint = qmt_verbs_of(base);
	struct qmt_remote_region region;
	qmla_status_t status;

	if (!endpoint->alive)
		return QMLA_ERR_UNAVAILABLE;
	status = qmt_op_check(op, &endpoint->server, QMT_LENGTH_MAX, &region);
	if (status != QMLA_OK)
		return status;
	/* The connection is for one region; the device would refuse any other's keys. */
	if (region.region != endpoint->answer.region)
		return QMLA_ERR_NOT_FOUND;
	if (op->length > endpoint->answer.bytes ||
	    op->remote_offset > endpoint->answer.bytes - op->length)
		return QMLA_ERR_INVALID_ARGUMENT;
	qmt_queue_push(&endpoint->queue, op);
	endpoint->waiting++;
	endpoint->waiting_bytes += op->length;
	return QMLA_OK;
}

void qmt_verbs_endpoint_cancel(struct qmt_endpoint *endpoint, struct qmt_op *op)
{
	qmt_queue_cancel(&qmt_verbs_of(endpoint)->queue, op);
}

bool qmt_verbs_endpoint_alive(const struct qmt_endpoint *base)
{
	/* An idle endpoint notices here what came meanwhile; it belongs to this thread. */
	struct qmt_verbs_endpoint *endpoint = qmt_verbs_of((struct qmt_endpoint *)(uintptr_t)base);

	if (endpoint->alive)
		(void)qmt_verbs_poll(endpoint);
	return endpoint->alive;
}

/* ---- waiting ---- */

/* What the oldest operation waits for. */
static const char *describe_wait(struct qmt_verbs_endpoint *endpoint)
{
	static const char *const texts[] = {
		[STAGE_NEW] = "an operation passed its deadline, not yet begun",
		[STAGE_READING] = "an operation passed its deadline, reading",
		[STAGE_ASKED] = "an operation passed its deadline, waiting for its window",
		[STAGE_WRITING] = "an operation passed its deadline, writing",
		[STAGE_FINISHING] =
			"an operation passed its deadline, waiting for the server's reply",
		[STAGE_PULLING] = "an operation passed its deadline, waiting to be fetched",
		[STAGE_DONE] = "an operation passed its deadline",
	};

	if (endpoint->queue.head == endpoint->queue.tail)
		return texts[STAGE_DONE];
	return texts[qmt_verbs_extra(endpoint, endpoint->queue.head)->stage];
}

static void expire(struct qmt_verbs_endpoint *endpoint, qmc_time_t now)
{
	if (qmt_queue_expire(&endpoint->queue, now))
		qmt_verbs_die(endpoint, describe_wait(endpoint));
}

/* Figures for the node, when there is nothing else to do. */
static void report_idle(struct qmt_verbs_endpoint *endpoint, qmc_time_t now)
{
	if (endpoint->reads_done == 0 || endpoint->reporting ||
	    endpoint->queue.head != endpoint->queue.tail || endpoint->queue.queued.head ||
	    now - endpoint->reported < REPORT_NS)
		return;
	endpoint->reporting = report(endpoint, QMT_MESSAGE_REPORT);
}

/*
 * A write waits for the server's word, and if the server is gone none comes and no
 * request is there to fail: now and then something is sent to find out.
 */
static qmc_time_t probe(struct qmt_verbs_endpoint *endpoint, qmc_time_t now)
{
	if (endpoint->writing == 0)
		return QMC_TIME_NEVER;
	if (now < endpoint->heard + PROBE_NS)
		return endpoint->heard + PROBE_NS;
	for (size_t i = 0; i < QMT_RAILS_MAX && endpoint->alive; i++) {
		struct qmt_verbs_rail *rail = &endpoint->rails[i];

		if (rail->up && rail->writes > 0 && rail->head == rail->tail)
			qmt_verbs_probe(endpoint, rail);
	}
	if (endpoint->alive)
		qmt_verbs_flush(endpoint);
	endpoint->heard = now;
	return now + PROBE_NS;
}

static void arm(struct qmt_verbs_endpoint *endpoint)
{
	for (size_t i = 0; i < QMT_RAILS_MAX && endpoint->alive; i++) {
		struct qmt_verbs_rail *rail = &endpoint->rails[i];

		if (rail->used && !rail->broken &&
		    endpoint->domain->api->req_notify_cq(rail->qp.cq, 0) != 0)
			qmt_verbs_die(endpoint, "no events come");
	}
}

/* Takes events out of the channel; many are acknowledged at once, which is what costs. */
static void take_events(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail)
{
	const struct qmt_verbs_api *api = endpoint->domain->api;
	struct ibv_cq *cq;
	void *user;

	/* It rings once for each time that it was armed. */
	if (api->get_cq_event(rail->qp.channel, &cq, &user) == 0)
		rail->qp.events++;
	if (rail->qp.events >= EVENTS_MAX) {
		api->ack_cq_events(rail->qp.cq, rail->qp.events);
		rail->qp.events = 0;
	}
}

static void sleep_until_event(struct qmt_verbs_endpoint *endpoint, qmc_time_t deadline)
{
	struct pollfd fds[QMT_RAILS_MAX + 1];
	struct qmt_verbs_rail *rails[QMT_RAILS_MAX];
	eventfd_t ignored;
	size_t count = 0;

	for (size_t i = 0; i < QMT_RAILS_MAX; i++) {
		if (!endpoint->rails[i].used || endpoint->rails[i].broken)
			continue;
		rails[count] = &endpoint->rails[i];
		fds[count] = (struct pollfd){rails[count]->qp.channel->fd, POLLIN, 0};
		count++;
	}
	fds[count] = (struct pollfd){endpoint->wake_fd, POLLIN, 0};
	if (endpoint->queue.next_deadline < deadline)
		deadline = endpoint->queue.next_deadline;
	if (poll(fds, count + 1, qmc_clock_left_ms(deadline)) <= 0)
		return;
	if (fds[count].revents & POLLIN)
		(void)eventfd_read(endpoint->wake_fd, &ignored);
	for (size_t i = 0; i < count; i++) {
		if (fds[i].revents & POLLIN)
			take_events(endpoint, rails[i]);
	}
}

/* Worth it where completions are that near; elsewhere it is only tried now and then. */
static bool worth_spinning(const struct qmt_verbs_endpoint *endpoint)
{
	return endpoint->idle_spins < SPINS_IDLE || endpoint->idle_spins % SPINS_RETRY == 0;
}

static bool spin(struct qmt_verbs_endpoint *endpoint, qmc_time_t until)
{
	do {
		if (qmt_verbs_poll(endpoint)) {
			endpoint->idle_spins = 0;
			return true;
		}
	} while (qmc_clock_now() < until);
	return false;
}

/* Polls for a moment, then has the device ring, polls once more, then sleeps. */
static void linger(struct qmt_verbs_endpoint *endpoint, qmc_time_t now, qmc_time_t deadline)
{
	qmc_time_t until = now + SPIN_NS;
	qmc_time_t again = probe(endpoint, now);

	if (worth_spinning(endpoint) && spin(endpoint, until))
		return;
	endpoint->idle_spins++;
	arm(endpoint);
	if (endpoint->alive && !qmt_verbs_poll(endpoint))
		sleep_until_event(endpoint, again < deadline ? again : deadline);
}

/*
 * Before the caller turns to what has come, the device gets what the caller posted since:
 * it must not run dry while blocks are being verified. In portions, since each costs a call.
 */
static void refill(struct qmt_verbs_endpoint *endpoint)
{
	if (endpoint->alive &&
	    (endpoint->waiting >= REFILL_OPS || endpoint->waiting_bytes >= REFILL_BYTES))
		qmt_verbs_issue(endpoint);
}

qmla_status_t qmt_verbs_endpoint_wait(struct qmt_endpoint *base, qmc_time_t deadline,
				      struct qmt_op **completed)
{
	struct qmt_verbs_endpoint *endpoint = qmt_verbs_of(base);

	for (;;) {
		struct qmt_op *op = qmt_queue_pop(&endpoint->queue);
		bool progress;
		qmc_time_t now;

		if (op)
			refill(endpoint);
		if (op || qmt_queue_is_empty(&endpoint->queue)) {
			*completed = op;
			return QMLA_OK;
		}
		now = qmc_clock_now();
		/* What is late before it was sent costs the connection nothing. */
		expire(endpoint, now);
		if (endpoint->alive)
			qmt_verbs_issue(endpoint);
		progress = endpoint->alive && qmt_verbs_poll(endpoint);
		if (progress && endpoint->alive)
			qmt_verbs_issue(endpoint);
		report_idle(endpoint, now);
		if (endpoint->queue.completed.head)
			continue;
		now = qmc_clock_now();
		if (now >= deadline)
			return QMLA_ERR_DEADLINE;
		if (!progress && endpoint->alive)
			linger(endpoint, now, deadline);
	}
}
