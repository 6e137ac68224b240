/* SPDX-License-Identifier: Apache-2.0 */
/** @file Control calls to several nodes at once. */
#ifndef QML_CALLS_H
#define QML_CALLS_H

#include <qmla/cache.h>

#include "client/cache/node.h"

struct qml_call {
	struct qml_node *node;
	const char *path;
	const ProtobufCMessage *request; /**< the caller's, until qml_calls_run returns */
	const ProtobufCMessageDescriptor *response_type;
	void *user;

	qmc_time_t sent;            /**< out: before the request left */
	qmla_status_t status;       /**< out */
	ProtobufCMessage *response; /**< out: NULL unless status is QMLA_OK */
	struct qmp_pending *pending_;
	int64_t given_;
};

/**
 * Sends all, waits for all: each has until @p deadline, but no longer than the
 * client's call timeout. Tells each node's health the outcome. Blocks.
 */
void qml_calls_run(struct qml_call *calls, size_t count, qmc_time_t deadline);

/** Frees the responses. */
void qml_calls_release(struct qml_call *calls, size_t count);

/** Connects those of @p nodes that are usable and have no link, all at once. Blocks. */
void qml_calls_connect(struct qml_node *const *nodes, size_t count, qmc_time_t deadline);

/**
 * The node's link, connecting when there is none; a reference for the caller.
 * Why not, when there is none. Blocks.
 */
qmla_status_t qml_calls_link(struct qml_node *node, qmc_time_t deadline, struct qml_link **link);

/**
 * A connection of @p link: from its stock, or made within @p deadline, for some transports
 * by another Connect. QMLA_ERR_PEER_RESTARTED: another life of the node answered. Blocks.
 */
qmla_status_t qml_calls_connection(struct qml_node *node, struct qml_link *link,
				   qmc_time_t deadline, struct qml_connection *connection);

/** Points @p binary[i] at keys[indices[i]], or keys[i] when @p indices is NULL. */
void qml_calls_point_keys(const qmla_key_t *keys, const size_t *indices, size_t count,
			  ProtobufCBinaryData *binary);

/** A code off the wire; QMLA_ERR_INTERNAL for one that is not known. */
qmla_status_t qml_calls_code(Qmla__V1__Code code);

#endif /* QML_CALLS_H */
