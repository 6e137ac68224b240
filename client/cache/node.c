/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/node.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define FAIR_TIME_NS (200 * QMC_NS_PER_MS)
#define PATIENCE     3

#define TRANSPORTS_MAX 8
#define PAUSE_FIRST    QMC_NS_PER_S
#define PAUSE_MAX      (120 * QMC_NS_PER_S)

struct qml_node {
	char name[sizeof(((struct qml_nodespec *)0)->name)];
	double weight;
	const struct qml_settings *settings;
	struct qmp_channel *channel;
	qml_node_lost_func_t lost;
	void *lost_user;
	_Atomic int health;              /* qmla_status_t; relaxed: a hint, re-read on each use */
	_Atomic qmc_time_t drains_until; /* relaxed: a hint */
	/* By preference of the transport; relaxed: hints. 0: not ruled out, NEVER: for good. */
	_Atomic qmc_time_t ruled_out_until[TRANSPORTS_MAX];

	pthread_mutex_t lock; /* what follows */
	struct qml_link *link;
	unsigned unanswered;
	int64_t pause_ns[TRANSPORTS_MAX]; /* before the transport is tried again */
};

qmla_status_t qml_node_create(const struct qml_nodespec *spec, const struct qml_settings *settings,
			      const struct qmp_tls *tls, qml_node_lost_func_t lost, void *user,
			      struct qml_node **node)
{
	struct qmp_channel_config config = {.target = spec->target, .tls = tls};
	struct qml_node *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	strcpy(self->name, spec->name);
	self->weight = spec->weight;
	self->settings = settings;
	self->lost = lost;
	self->lost_user = user;
	status = qmp_channel_create(&config, &self->channel);
	if (status != QMLA_OK) {
		free(self);
		return status;
	}
	pthread_mutex_init(&self->lock, NULL);
	*node = self;
	return QMLA_OK;
}

void qml_node_destroy(struct qml_node *node)
{
	if (!node)
		return;
	qml_link_put(node->link);
	qmp_channel_destroy(node->channel);
	pthread_mutex_destroy(&node->lock);
	free(node);
}

const char *qml_node_name(const struct qml_node *node)
{
	return node->name;
}

double qml_node_weight(const struct qml_node *node)
{
	return node->weight;
}

struct qmp_channel *qml_node_channel(const struct qml_node *node)
{
	return node->channel;
}

const struct qml_settings *qml_node_settings(const struct qml_node *node)
{
	return node->settings;
}

qmla_status_t qml_node_health(const struct qml_node *node)
{
	return (qmla_status_t)atomic_load_explicit(&node->health, memory_order_relaxed);
}

bool qml_node_usable(const struct qml_node *node)
{
	return qml_node_health(node) == QMLA_OK;
}

bool qml_node_writable(const struct qml_node *node)
{
	return qml_node_usable(node) &&
	       qmc_clock_now() >= atomic_load_explicit(&node->drains_until, memory_order_relaxed);
}

void qml_node_set_draining(struct qml_node *node)
{
	atomic_store_explicit(&node->drains_until, qmc_clock_after(node->settings->probe_ns),
			      memory_order_relaxed);
}

/* Under the lock. True when this outcome leaves the node out. */
static bool condemns(struct qml_node *node, qmla_status_t outcome, int64_t given_ns)
{
	int64_t fair =
		node->settings->call_ns < FAIR_TIME_NS ? node->settings->call_ns : FAIR_TIME_NS;

	if (outcome == QMLA_ERR_UNAVAILABLE)
		return true;
	if (outcome != QMLA_ERR_DEADLINE)
		return false;
	return given_ns >= fair || ++node->unanswered >= PATIENCE;
}

void qml_node_judge(struct qml_node *node, qmla_status_t outcome, int64_t given_ns)
{
	qml_node_judge_call(node, outcome, given_ns, "");
}

void qml_node_judge_call(struct qml_node *node, qmla_status_t outcome, int64_t given_ns,
			 const char *detail)
{
	struct qml_link *dropped = NULL;
	bool left_out, was_out;

	if (outcome == QMLA_ERR_CANCELLED)
		return; /* says nothing about the node */
	pthread_mutex_lock(&node->lock);
	was_out = !qml_node_usable(node);
	left_out = condemns(node, outcome, given_ns);
	if (left_out) {
		dropped = node->link;
		node->link = NULL;
		atomic_store_explicit(&node->health, outcome, memory_order_relaxed);
	} else if (outcome != QMLA_ERR_DEADLINE) {
		node->unanswered = 0;
		atomic_store_explicit(&node->health, QMLA_OK, memory_order_relaxed);
	}
	pthread_mutex_unlock(&node->lock);
	qml_link_put(dropped);
	if (left_out && !was_out) {
		qmc_warn("client", "node %s is left out (%s%s%s) and probed every %lld ms",
			 node->name, qmla_status_text(outcome), detail[0] ? ": " : "", detail,
			 (long long)(node->settings->probe_ns / QMC_NS_PER_MS));
		node->lost(node->lost_user);
	} else if (was_out && !left_out && outcome != QMLA_ERR_DEADLINE) {
		qmc_info("client", "node %s is back", node->name);
	}
}

struct qml_link *qml_node_link(struct qml_node *node)
{
	struct qml_link *link;

	pthread_mutex_lock(&node->lock);
	link = node->link ? qml_link_get(node->link) : NULL;
	pthread_mutex_unlock(&node->lock);
	return link;
}

qmla_status_t qml_node_adopt(struct qml_node *node, const Qmla__V1__ConnectResponse *response)
{
	struct qml_link *made, *dropped;
	qmla_status_t status = qml_link_create(node->settings, response, &made);

	if (status != QMLA_OK)
		return status;
	pthread_mutex_lock(&node->lock);
	if (node->link && node->link->incarnation == made->incarnation &&
	    node->link->ops == made->ops) {
		dropped = made; /* two threads connected at once: keep the first one's stock */
	} else {
		dropped = node->link;
		node->link = made;
	}
	pthread_mutex_unlock(&node->lock);
	qml_link_put(dropped);
	return QMLA_OK;
}

void qml_node_forget(struct qml_node *node, uint64_t incarnation)
{
	struct qml_link *dropped = NULL;

	pthread_mutex_lock(&node->lock);
	if (node->link && node->link->incarnation == incarnation) {
		dropped = node->link;
		node->link = NULL;
	}
	pthread_mutex_unlock(&node->lock);
	qml_link_put(dropped);
}

static size_t rank_of(const struct qmt_transport_ops *ops)
{
	size_t rank = 0;

	while (rank < TRANSPORTS_MAX - 1 && qmt_transport_at(rank) && qmt_transport_at(rank) != ops)
		rank++;
	return rank;
}

static qmc_time_t out_until(const struct qml_node *node, size_t rank)
{
	return atomic_load_explicit(&node->ruled_out_until[rank], memory_order_relaxed);
}

bool qml_node_ruled_out(const struct qml_node *node, const struct qmt_transport_ops *ops)
{
	qmc_time_t until = out_until(node, rank_of(ops));

	return until != 0 && qmc_clock_now() < until;
}

/* When to try it again; each failure in a row doubles the pause. Under the lock. */
static qmc_time_t pause_locked(struct qml_node *node, const struct qmt_transport_ops *ops,
			       size_t rank)
{
	int64_t *pause = &node->pause_ns[rank];

	if (!ops->endpoint_offer)
		return QMC_TIME_NEVER; /* a path that isn't visible here does not become so */
	*pause = *pause == 0 ? PAUSE_FIRST : 2 * *pause;
	if (*pause > PAUSE_MAX)
		*pause = PAUSE_MAX;
	return qmc_clock_after(*pause);
}

bool qml_node_rule_out(struct qml_node *node, const struct qmt_transport_ops *ops)
{
	struct qml_link *dropped = NULL;
	size_t rank = rank_of(ops);
	bool first;

	if (node->settings->transport[0] || ops == &qmt_tcp_ops)
		return false;
	pthread_mutex_lock(&node->lock);
	first = node->pause_ns[rank] == 0 && out_until(node, rank) == 0;
	/* Several lanes fail together: that counts as one failure. */
	if (!qml_node_ruled_out(node, ops))
		atomic_store_explicit(&node->ruled_out_until[rank], pause_locked(node, ops, rank),
				      memory_order_relaxed);
	if (node->link && node->link->ops == ops) {
		dropped = node->link;
		node->link = NULL;
	}
	pthread_mutex_unlock(&node->lock);
	if (first)
		qmc_warn("client",
			 "node %s cannot be reached by %s from here; using the next best%s",
			 node->name, ops->name,
			 ops->endpoint_offer ? ", and trying again later" : "");
	qml_link_put(dropped);
	return true;
}

void qml_node_ruled_in(struct qml_node *node, const struct qmt_transport_ops *ops)
{
	size_t rank = rank_of(ops);

	if (out_until(node, rank) == 0)
		return;
	pthread_mutex_lock(&node->lock);
	node->pause_ns[rank] = 0;
	atomic_store_explicit(&node->ruled_out_until[rank], 0, memory_order_relaxed);
	pthread_mutex_unlock(&node->lock);
	qmc_info("client", "node %s is reached by %s again", node->name, ops->name);
}

bool qml_node_may_do_better(struct qml_node *node, const struct qmt_transport_ops *ops)
{
	const struct qmt_transport_ops *better;
	qmc_time_t now = qmc_clock_now();

	for (size_t rank = 0; (better = qmt_transport_at(rank)) != NULL && better != ops; rank++) {
		qmc_time_t until = out_until(node, rank);

		if (until == 0 || until == QMC_TIME_NEVER || now < until)
			continue;
		/* One caller asks; the others go on with what there is. */
		if (atomic_compare_exchange_strong_explicit(&node->ruled_out_until[rank], &until,
							    now, memory_order_relaxed,
							    memory_order_relaxed))
			return true;
	}
	return false;
}
