/* SPDX-License-Identifier: Apache-2.0 */
/** @file What a client is made of; its functions live in lookup.c, fetch.c, publish.c, admin.c. */
#ifndef QML_CLIENT_H
#define QML_CLIENT_H

#include <qmla/cache.h>

#include "client/cache/background.h"
#include "client/cache/crew.h"
#include "client/cache/node.h"
#include "client/cache/placement.h"
#include "client/cache/settings.h"

struct qmla_client {
	struct qml_settings settings;
	struct qml_node **nodes; /**< [node_count], in the order of the list */
	struct qml_place *places;
	size_t node_count;
	struct qml_background *background;
	struct qml_crew *crew;
};

/** The deadline of a public call. */
qmc_time_t qml_client_deadline(uint32_t timeout_ms);

/** Checks the arguments that every call with keys has. */
qmla_status_t qml_client_check_keys(const qmla_client_t *client, const qmla_key_t *keys,
				    size_t count);

/** Nodes asked for a key: its replicas and one more, which holds what moved or fell over. */
size_t qml_client_depth(const qmla_client_t *client);

#endif /* QML_CLIENT_H */
