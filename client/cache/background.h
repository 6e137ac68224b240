/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The client's own thread: waits for answers that nobody else waits for
 * (releases, aborts) and probes nodes that are left out. Sleeps otherwise.
 */
#ifndef QML_BACKGROUND_H
#define QML_BACKGROUND_H

#include "client/cache/node.h"

struct qml_background;

/** @p nodes must outlive it. */
qmla_status_t qml_background_create(struct qml_node *const *nodes, size_t count,
				    struct qml_background **background);

/** Cancels what is still open and joins the thread. Accepts NULL. */
void qml_background_destroy(struct qml_background *background);

/** A node was left out: start probing. Any thread; @p background is a struct qml_background. */
void qml_background_wake(void *background);

/**
 * Sends a call whose answer does not matter, best effort. The request is packed
 * before it returns. Any thread; does not block.
 */
void qml_background_send(struct qml_background *background, struct qml_node *node, const char *path,
			 const ProtobufCMessage *request,
			 const ProtobufCMessageDescriptor *response_type);

#endif /* QML_BACKGROUND_H */
