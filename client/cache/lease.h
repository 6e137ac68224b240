/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A lease that a node granted with a Lookup, renewed at half its time while a
 * transfer lasts. Its end is counted on this machine's clock from before the
 * request was sent, so it never lies later than the node's own. Any thread.
 */
#ifndef QML_LEASE_H
#define QML_LEASE_H

#include <stdbool.h>

#include "client/cache/background.h"
#include "client/cache/node.h"
#include "transport/transport.h"

struct qml_lease;

/** @p response granted one; @p sent is when the request left. */
qmla_status_t qml_lease_create(struct qml_node *node, const Qmla__V1__LookupResponse *response,
			       qmc_time_t sent, struct qml_lease **lease);

/** Gives it back to the node, without waiting. Accepts NULL. */
void qml_lease_release(struct qml_lease *lease, struct qml_background *background);

/** What reads under the lease must show: QMT_CAPABILITY_BYTES bytes, the lease's. */
const uint8_t *qml_lease_capability(const struct qml_lease *lease);

/** True when it had not ended at @p at. */
bool qml_lease_covers(struct qml_lease *lease, qmc_time_t at);

/**
 * Starts a renewal when half the time is over, takes in an answer that has come.
 * Does not block. Returns when to call again.
 */
qmc_time_t qml_lease_tend(struct qml_lease *lease);

/** Renewals that the node granted. */
uint32_t qml_lease_renewals(struct qml_lease *lease);

#endif /* QML_LEASE_H */
