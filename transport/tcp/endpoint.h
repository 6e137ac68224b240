/* SPDX-License-Identifier: Apache-2.0 */
/** @file Endpoint functions of the tcp back end; contracts in qmt_transport_ops. */
#ifndef QMT_TCP_ENDPOINT_H
#define QMT_TCP_ENDPOINT_H

#include "transport/transport.h"

/** Connects and shakes hands within @p deadline. Blocks. */
qmla_status_t qmt_tcp_endpoint_create(const struct qmt_server_address *address, qmc_time_t deadline,
				      struct qmt_endpoint **endpoint);

/**
 * Closes the connection and forgets posted operations; their memory is free on return.
 * Accepts NULL.
 */
void qmt_tcp_endpoint_destroy(struct qmt_endpoint *endpoint);

/** A no-op: any memory will do. */
qmla_status_t qmt_tcp_endpoint_register(struct qmt_endpoint *endpoint,
					const struct qmt_memory *memory);

/** Takes an operation, which comes back from wait exactly once. Never blocks. */
qmla_status_t qmt_tcp_endpoint_post(struct qmt_endpoint *endpoint, struct qmt_op *op);

/** Moves bytes until an operation completes or @p deadline passes. */
qmla_status_t qmt_tcp_endpoint_wait(struct qmt_endpoint *endpoint, qmc_time_t deadline,
				    struct qmt_op **completed);

/** Has @p op complete soon with QMLA_ERR_CANCELLED. */
void qmt_tcp_endpoint_cancel(struct qmt_endpoint *endpoint, struct qmt_op *op);

/** False once the connection failed. Does not block. */
bool qmt_tcp_endpoint_alive(const struct qmt_endpoint *endpoint);

#endif /* QMT_TCP_ENDPOINT_H */
