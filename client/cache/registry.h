/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Memory the caller made known: every endpoint registers all of it. The version
 * tells an endpoint that it was made before the last addition. Any thread.
 */
#ifndef QML_REGISTRY_H
#define QML_REGISTRY_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "transport/transport.h"

struct qml_registry;

/** An empty registry. QMLA_ERR_NO_MEMORY. */
qmla_status_t qml_registry_create(struct qml_registry **registry);
void qml_registry_destroy(struct qml_registry *registry); /**< accepts NULL */

/** QMLA_ERR_RESOURCE_EXHAUSTED past 64 areas: register few and large ones. */
qmla_status_t qml_registry_add(struct qml_registry *registry, void *base, uint64_t bytes);

/** Number that grows with every addition. */
uint32_t qml_registry_version(struct qml_registry *registry);

/** Registers every area with @p endpoint; @p version is what it then knows. */
qmla_status_t qml_registry_apply(struct qml_registry *registry, const struct qmt_transport_ops *ops,
				 struct qmt_endpoint *endpoint, uint32_t *version);

#endif /* QML_REGISTRY_H */
