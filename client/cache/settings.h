/* SPDX-License-Identifier: Apache-2.0 */
/** @file What a client was told: read-only after creation, shared by its parts. */
#ifndef QML_SETTINGS_H
#define QML_SETTINGS_H

#include <qmla/cache.h>

#include "client/cache/registry.h"
#include "common/clock.h"
#include "kernels/layout.h"

#define QML_HOST_ID_MAX        64
#define QML_TRANSPORT_NAME_MAX 16

struct qml_settings {
	qmla_identity_t identity;
	struct qmk_layout layout;
	uint64_t fingerprint;
	char transport[QML_TRANSPORT_NAME_MAX]; /**< "": best first */
	char host_id[QML_HOST_ID_MAX];          /**< boot id of this machine, "": unknown */
	uint32_t replicas;
	uint32_t connections; /**< 0: as suits the transport and the machine */
	uint32_t processors;  /**< this process may run on */
	uint32_t lease_ms;
	int64_t connect_ns;
	int64_t call_ns;
	int64_t probe_ns;
	struct qml_registry *registry; /**< memory the caller made known */
};

/**
 * Checks @p config and fills in defaults; logs the field at fault
 * (QMLA_ERR_INVALID_ARGUMENT, QMLA_ERR_UNSUPPORTED for an unknown transport).
 */
qmla_status_t qml_settings_init(const qmla_client_config_t *config, struct qml_settings *settings);

/** Frees what init made; accepts zeroed settings. */
void qml_settings_fini(struct qml_settings *settings);

#endif /* QML_SETTINGS_H */
