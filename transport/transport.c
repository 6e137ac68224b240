/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"

#include <string.h>

/* In order of preference; shm finds only servers of its own host. */
static const struct qmt_transport_ops *const transports[] = {
#ifdef QMT_HAVE_VERBS
	&qmt_verbs_ops,
#endif
	&qmt_shm_ops,
	&qmt_tcp_ops,
};

const struct qmt_transport_ops *qmt_transport_at(size_t index)
{
	return index < sizeof(transports) / sizeof(transports[0]) ? transports[index] : NULL;
}

const struct qmt_transport_ops *qmt_transport_find(const char *name)
{
	const struct qmt_transport_ops *ops;

	for (size_t i = 0; name && (ops = qmt_transport_at(i)) != NULL; i++) {
		if (strcmp(ops->name, name) == 0)
			return ops;
	}
	return NULL;
}

/* Posts all; returns how many were taken. An op that was refused has its status already. */
static size_t post_all(const struct qmt_transport_ops *ops, struct qmt_endpoint *endpoint,
		       struct qmt_op *list, size_t count)
{
	size_t posted = 0;

	for (size_t i = 0; i < count; i++) {
		qmla_status_t status = ops->endpoint_post(endpoint, &list[i]);

		if (status == QMLA_OK)
			posted++;
		else
			list[i].status = status;
	}
	return posted;
}

qmla_status_t qmt_endpoint_run(const struct qmt_transport_ops *ops, struct qmt_endpoint *endpoint,
			       struct qmt_op *list, size_t count)
{
	size_t posted = post_all(ops, endpoint, list, count);

	while (posted > 0) {
		struct qmt_op *op = NULL;
		qmla_status_t status = ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &op);

		if (status != QMLA_OK)
			return status;
		if (!op)
			return QMLA_ERR_INTERNAL;
		posted--;
	}
	for (size_t i = 0; i < count; i++) {
		if (list[i].status != QMLA_OK)
			return list[i].status;
	}
	return QMLA_OK;
}
