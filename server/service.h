/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The node as a service: the store, its transports, the reaper and the cache API
 * (proto/qmla/v1/cache.proto) over gRPC. One object holds it all, so that tests
 * run nodes inside their own process.
 */
#ifndef QMS_SERVICE_H
#define QMS_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/rpc_server.h"
#include "server/data_plane.h"
#include "server/store/store.h"

#define QMS_NODE_ID_MAX 64
#define QMS_PROTOCOL    1u

struct qms_service;

struct qms_service_config {
	const char *node_id;       /**< copied, at most QMS_NODE_ID_MAX - 1 characters */
	const char *listen;        /**< of the control plane */
	const struct qmp_tls *tls; /**< NULL: plain text; must outlive the service */
	uint32_t rpc_threads;      /**< 0: default */
	uint32_t max_batch_keys;   /**< 0: 4,096 */
	int64_t heartbeat_ns;      /**< of idle watches, 0: 5 s */
	struct qms_data_plane_config data;
	struct qms_store_config store; /**< callbacks are set here */
};

/** Starts everything; answers health checks with NOT_SERVING until told otherwise. Errors are
 * logged. */
qmla_status_t qms_service_create(const struct qms_service_config *config,
				 struct qms_service **service);

/** Stops serving: @p grace_ns for calls that run. Accepts NULL. */
void qms_service_destroy(struct qms_service *service, int64_t grace_ns);

/** What health checks and /readyz say. */
void qms_service_set_ready(struct qms_service *service, bool ready);
bool qms_service_ready(const struct qms_service *service);

/** From now on no new write and no new lease; what was granted may finish, renewed at most until @p
 * deadline. */
void qms_service_drain(struct qms_service *service, qmc_time_t deadline);
bool qms_service_draining(const struct qms_service *service);

/** True when nothing is leased, reserved or moving. */
bool qms_service_idle(struct qms_service *service);

uint16_t qms_service_port(const struct qms_service *service);
uint16_t qms_service_data_port(const struct qms_service *service);
uint64_t qms_service_incarnation(const struct qms_service *service);
const char *qms_service_node_id(const struct qms_service *service);
qmc_time_t qms_service_started(const struct qms_service *service);
struct qms_store *qms_service_store(struct qms_service *service);
const struct qms_data_plane *qms_service_data(const struct qms_service *service);

#endif /* QMS_SERVICE_H */
