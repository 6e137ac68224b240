/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The gRPC server of a node, made anew when it went deaf: after a lack of file
 * descriptors libgrpc never listens again (proto/accept_watch.h). The store and
 * the data plane do not notice; clients reconnect.
 */
#ifndef QMS_CONTROL_PLANE_H
#define QMS_CONTROL_PLANE_H

#include "proto/rpc_server.h"

struct qms_control_plane;

struct qms_control_plane_config {
	struct qmp_server_config server;    /**< strings are copied, tls is borrowed */
	const struct qmp_service *services; /**< borrowed */
	size_t count;
	void *user;
	void (*before_restart)(void *user); /**< ends streams, which would hold the old server up */
	void (*after_restart)(void *user);
};

/** Starts serving, with health NOT_SERVING. Statuses of qmp_server_create. */
qmla_status_t qms_control_plane_create(const struct qms_control_plane_config *config,
				       struct qms_control_plane **plane);

/** Stops serving; @p grace_ns for calls that run. Accepts NULL. */
void qms_control_plane_destroy(struct qms_control_plane *plane, int64_t grace_ns);

/** The port, the same for life. */
uint16_t qms_control_plane_port(const struct qms_control_plane *plane);

/** What health checks say; remembered over a restart. */
void qms_control_plane_set_serving(struct qms_control_plane *plane, bool serving);

/** False while the server is being made anew. */
bool qms_control_plane_listens(struct qms_control_plane *plane);

#endif /* QMS_CONTROL_PLANE_H */
