/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * grpc.health.v1 Check and Watch of one server. Both are answered on the queue's
 * thread, so a probe is answered however busy the handlers are. Internal to proto/.
 */
#ifndef QMP_HEALTH_H
#define QMP_HEALTH_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/rpc_server.h"

#define QMP_HEALTH_METHODS 2

struct qmp_health;

/** Knows "" and the services that @p services' paths name. Starts as NOT_SERVING. */
qmla_status_t qmp_health_create(const struct qmp_service *services, size_t count,
				struct qmp_health **health);

/** No watcher may be left: the server has ended every call. Accepts NULL. */
void qmp_health_destroy(struct qmp_health *health);

/** The methods to register, with @p health as their object. */
extern const struct qmp_method qmp_health_methods[QMP_HEALTH_METHODS];

/** Sets the state and tells the watchers. Any thread; does not block. */
void qmp_health_set(struct qmp_health *health, bool serving);

/** Tells the watchers NOT_SERVING, then ends their streams with QMLA_ERR_DRAINING. */
void qmp_health_stop(struct qmp_health *health);

#endif /* QMP_HEALTH_H */
