/* SPDX-License-Identifier: Apache-2.0 */
/** @file Endpoint functions of the verbs back end; contracts in qmt_transport_ops. */
#ifndef QMT_VERBS_ENDPOINT_H
#define QMT_VERBS_ENDPOINT_H

#include "transport/transport.h"

/** Queue pairs on every usable port, not connected yet. QMLA_ERR_UNAVAILABLE: no port is up. */
qmla_status_t qmt_verbs_endpoint_offer(const struct qmt_server_address *address,
				       struct qmt_endpoint **endpoint, struct qmt_offer *offer);

/** Connects them as the answer says; a rail on which no word comes back is left out. Blocks. */
qmla_status_t qmt_verbs_endpoint_complete(struct qmt_endpoint *endpoint,
					  const struct qmt_offer *answer, qmc_time_t deadline);

/** Says goodbye, takes the queue pairs down; memory of posted operations is free on return. */
void qmt_verbs_endpoint_destroy(struct qmt_endpoint *endpoint);

/** Registers @p memory, once for the process. Blocks for as long as that takes. */
qmla_status_t qmt_verbs_endpoint_register(struct qmt_endpoint *endpoint,
					  const struct qmt_memory *memory);

/** Takes an operation, which comes back from wait exactly once. Never blocks. */
qmla_status_t qmt_verbs_endpoint_post(struct qmt_endpoint *endpoint, struct qmt_op *op);

/** Posts, polls and sleeps until an operation completes or @p deadline passes. */
qmla_status_t qmt_verbs_endpoint_wait(struct qmt_endpoint *endpoint, qmc_time_t deadline,
				      struct qmt_op **completed);

/** Has @p op complete with QMLA_ERR_CANCELLED once the device is done with its memory. */
void qmt_verbs_endpoint_cancel(struct qmt_endpoint *endpoint, struct qmt_op *op);

/** False once it failed or the server said goodbye. Does not block. */
bool qmt_verbs_endpoint_alive(const struct qmt_endpoint *endpoint);

#endif /* QMT_VERBS_ENDPOINT_H */
