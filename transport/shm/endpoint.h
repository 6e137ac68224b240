/* SPDX-License-Identifier: Apache-2.0 */
/** @file Endpoint functions of the shm back end; contracts in qmt_transport_ops. */
#ifndef QMT_SHM_ENDPOINT_H
#define QMT_SHM_ENDPOINT_H

#include "transport/transport.h"

qmla_status_t qmt_shm_endpoint_create(const struct qmt_server_address *address, qmc_time_t deadline,
				      struct qmt_endpoint **endpoint);
void qmt_shm_endpoint_destroy(struct qmt_endpoint *endpoint);
qmla_status_t qmt_shm_endpoint_register(struct qmt_endpoint *endpoint,
					const struct qmt_memory *memory);
qmla_status_t qmt_shm_endpoint_post(struct qmt_endpoint *endpoint, struct qmt_op *op);
qmla_status_t qmt_shm_endpoint_wait(struct qmt_endpoint *endpoint, qmc_time_t deadline,
				    struct qmt_op **completed);
void qmt_shm_endpoint_cancel(struct qmt_endpoint *endpoint, struct qmt_op *op);
bool qmt_shm_endpoint_alive(const struct qmt_endpoint *endpoint);

#endif /* QMT_SHM_ENDPOINT_H */
