/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A gRPC server that is made anew when it went deaf: after a lack of file
 * descriptors libgrpc never listens again (proto/accept_watch.h). What lies behind
 * the services does not notice; clients reconnect. Any thread may call.
 */
#ifndef QMP_RPC_KEEPER_H
#define QMP_RPC_KEEPER_H

#include "proto/rpc_server.h"

struct qmp_keeper;

struct qmp_keeper_config {
	struct qmp_server_config server;    /**< strings are copied, tls is borrowed */
	const struct qmp_service *services; /**< borrowed */
	size_t count;
	void *user;
	void (*before_restart)(void *user); /**< ends streams, which would hold the old server up;
					       may be NULL */
	void (*after_restart)(void *user);  /**< may be NULL */
	int64_t grace_ns; /**< for calls that still run on the deaf server, 0: 2 s */
};

/** Starts serving, with health NOT_SERVING. Statuses of qmp_server_create. */
qmla_status_t qmp_keeper_create(const struct qmp_keeper_config *config, struct qmp_keeper **keeper);

/** Stops serving; @p grace_ns for calls that run. Accepts NULL. */
void qmp_keeper_destroy(struct qmp_keeper *keeper, int64_t grace_ns);

/** The port, the same for life. */
uint16_t qmp_keeper_port(const struct qmp_keeper *keeper);

/** What health checks say; remembered over a restart. */
void qmp_keeper_set_serving(struct qmp_keeper *keeper, bool serving);

/** False while the server is being made anew. */
bool qmp_keeper_listens(struct qmp_keeper *keeper);

#endif /* QMP_RPC_KEEPER_H */
