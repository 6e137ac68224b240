/* SPDX-License-Identifier: Apache-2.0 */
/** @file Server functions of the verbs back end; contracts in qmt_transport_ops. */
#ifndef QMT_VERBS_SERVER_H
#define QMT_VERBS_SERVER_H

#include "transport/transport.h"

/** Opens the devices and starts the serving thread. QMLA_ERR_UNAVAILABLE: no active port. */
qmla_status_t qmt_verbs_server_create(const struct qmt_server_config *config,
				      struct qmt_server **server);

/** Takes every connection down, joins the thread, finishes every access. Accepts NULL. */
void qmt_verbs_server_destroy(struct qmt_server *server);

/** What clients need to make an offer. */
qmla_status_t qmt_verbs_server_address(const struct qmt_server *server,
				       struct qmt_server_address *address);

/** Registers @p memory with every device, each in a protection domain of its own. */
qmla_status_t qmt_verbs_server_register(struct qmt_server *server, const struct qmt_memory *memory,
					uint64_t region, struct qmt_handle *handle);

/** On return no write under @p capability can land any more, and it is refused. Blocks shortly. */
qmla_status_t qmt_verbs_server_fence(struct qmt_server *server,
				     const uint8_t capability[QMT_CAPABILITY_BYTES]);

/** A snapshot; reads are as the peers tell. Any thread. */
void qmt_verbs_server_stats(const struct qmt_server *server, struct qmt_server_stats *stats);

/** Cuts off every peer of @p region. */
void qmt_verbs_server_revoke(struct qmt_server *server, uint64_t region);

/** Devices, addresses, kind of memory, how writes come in. */
void qmt_verbs_server_describe(const struct qmt_server *server, char text[QMT_DESCRIPTION_MAX]);

/** The answer to a client's offer, the same for the same offer. */
qmla_status_t qmt_verbs_server_answer(struct qmt_server *server, uint64_t region,
				      const struct qmt_offer *offer, struct qmt_offer *answer);

#endif /* QMT_VERBS_SERVER_H */
