/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What one Connect gave: the data path to one life of a node. Counted, read-only
 * but for its stock of idle endpoints. When the node turns out to be another
 * incarnation, or the transport does not work, the node drops its link and makes
 * another; whoever is still using the old one keeps it until put.
 */
#ifndef QML_LINK_H
#define QML_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cache/settings.h"
#include "qmla/v1/cache.pb-c.h"
#include "transport/transport.h"

struct qml_link {
	_Atomic uint32_t references;
	const struct qmt_transport_ops *ops;
	const struct qml_settings *settings;
	uint64_t incarnation;
	struct qmt_server_address address;
	struct qmt_handle region;
	uint64_t region_bytes;
	uint32_t max_batch_keys;
	uint32_t max_lease_ms;
	struct qml_stock *stock;
};

/**
 * Checks the node's answer and makes a link with one reference.
 * QMLA_ERR_FORMAT: the answer makes no sense; QMLA_ERR_UNSUPPORTED: a transport
 * that was not offered; QMLA_ERR_LAYOUT_MISMATCH: slots too small for a block.
 */
qmla_status_t qml_link_create(const struct qml_settings *settings,
			      const Qmla__V1__ConnectResponse *response, struct qml_link **link);

/** Takes another reference; returns @p link. */
struct qml_link *qml_link_get(struct qml_link *link);
void qml_link_put(struct qml_link *link); /**< accepts NULL; the last one closes the endpoints */

/** An endpoint and what is known of it; belongs to the taker's thread. */
struct qml_connection {
	struct qmt_endpoint *endpoint;
	uint32_t memory_version;
	bool fresh; /**< connected just now, not from the stock */
};

/** One from the stock that still works; false when there is none. */
bool qml_link_take(struct qml_link *link, struct qml_connection *connection);

/**
 * A new one, connected within @p deadline. Blocks. For a transport that connects over the
 * control plane: qml_calls_connection.
 */
qmla_status_t qml_link_dial(struct qml_link *link, qmc_time_t deadline,
			    struct qml_connection *connection);

/** Makes a connection of @p endpoint, which is the link's from here on, also when this fails. */
qmla_status_t qml_link_equip(struct qml_link *link, struct qmt_endpoint *endpoint,
			     struct qml_connection *connection);

/** Back to the stock while it lives, has nothing posted and there is room; else closed. */
void qml_link_give(struct qml_link *link, struct qml_connection *connection);

/** Closes it: posted operations are forgotten, their memory is free on return. */
void qml_link_drop(struct qml_link *link, struct qml_connection *connection);

#endif /* QML_LINK_H */
