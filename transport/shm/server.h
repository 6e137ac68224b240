/* SPDX-License-Identifier: Apache-2.0 */
/** @file Server functions of the shm back end; contracts in qmt_transport_ops. */
#ifndef QMT_SHM_SERVER_H
#define QMT_SHM_SERVER_H

#include "transport/transport.h"

qmla_status_t qmt_shm_server_create(const struct qmt_server_config *config,
				    struct qmt_server **server);
void qmt_shm_server_destroy(struct qmt_server *server);
qmla_status_t qmt_shm_server_address(const struct qmt_server *server,
				     struct qmt_server_address *address);
qmla_status_t qmt_shm_server_register(struct qmt_server *server, const struct qmt_memory *memory,
				      uint64_t region, struct qmt_handle *handle);
qmla_status_t qmt_shm_server_fence(struct qmt_server *server,
				   const uint8_t capability[QMT_CAPABILITY_BYTES]);
void qmt_shm_server_stats(const struct qmt_server *server, struct qmt_server_stats *stats);

#endif /* QMT_SHM_SERVER_H */
