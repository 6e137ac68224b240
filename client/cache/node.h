/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One node as the client sees it: its control channel, its link (what the last
 * Connect gave) and its health. Any thread.
 *
 * Health. A refused or broken connection leaves the node out at once. A call that
 * got no answer leaves it out when it had been given a fair time, else at the
 * third in a row: a caller in a hurry does not condemn a node. A node that is
 * left out is asked nothing; the background thread probes it (background.h).
 */
#ifndef QML_NODE_H
#define QML_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cache/link.h"
#include "client/cache/nodelist.h"
#include "client/cache/settings.h"
#include "proto/rpc_client.h"

struct qml_node;

/** Called without locks when a node has just been left out. */
typedef void (*qml_node_lost_func_t)(void *user);

/** Does not connect yet. @p tls (may be NULL) is used during the call only. */
qmla_status_t qml_node_create(const struct qml_nodespec *spec, const struct qml_settings *settings,
			      const struct qmp_tls *tls, qml_node_lost_func_t lost, void *user,
			      struct qml_node **node);
void qml_node_destroy(struct qml_node *node); /**< accepts NULL */

/** The address as it was configured; the node's. */
const char *qml_node_name(const struct qml_node *node);

/** Share of the keys, relative to the other nodes' weights. */
double qml_node_weight(const struct qml_node *node);

/** The channel for calls; the node's, and it lives as long. */
struct qmp_channel *qml_node_channel(const struct qml_node *node);

/** The client's settings, borrowed. */
const struct qml_settings *qml_node_settings(const struct qml_node *node);

/** False while it is left out. */
bool qml_node_usable(const struct qml_node *node);

/** Usable, and has not just said that it is draining. */
bool qml_node_writable(const struct qml_node *node);

/** The node has just said that it is draining: it gets no new blocks for a while. */
void qml_node_set_draining(struct qml_node *node);

/** QMLA_OK, or why it is left out. */
qmla_status_t qml_node_health(const struct qml_node *node);

/** Takes an outcome into account: of a call that was given @p given_ns. */
void qml_node_judge(struct qml_node *node, qmla_status_t outcome, int64_t given_ns);

/** The same, with the reason that the call's layer gives, for the message; "": none. */
void qml_node_judge_call(struct qml_node *node, qmla_status_t outcome, int64_t given_ns,
			 const char *detail);

/** The current link with a reference for the caller, or NULL. */
struct qml_link *qml_node_link(struct qml_node *node);

/** Makes @p response the current link, unless that one is of the same life and kind already. */
qmla_status_t qml_node_adopt(struct qml_node *node, const Qmla__V1__ConnectResponse *response);

/** Forgets the link if it is of life @p incarnation: the next use connects again. */
void qml_node_forget(struct qml_node *node, uint64_t incarnation);

/**
 * Gives up a transport that cannot be reached from here (shm across containers, verbs
 * without a common fabric); false when it was forced or is the last resort. Forgets the
 * link. What is brought up over the control plane is tried again after a while (1 s,
 * doubling up to 2 min): a port may come back.
 */
bool qml_node_rule_out(struct qml_node *node, const struct qmt_transport_ops *ops);

/** The transport works: the next failure of it is a first one. */
void qml_node_ruled_in(struct qml_node *node, const struct qmt_transport_ops *ops);

/** True, once, when a transport better than @p ops is due for another try. */
bool qml_node_may_do_better(struct qml_node *node, const struct qmt_transport_ops *ops);

/** True while qml_node_rule_out has given up this transport. */
bool qml_node_ruled_out(const struct qml_node *node, const struct qmt_transport_ops *ops);

#endif /* QML_NODE_H */
