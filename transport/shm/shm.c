/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/endpoint.h"
#include "transport/shm/server.h"

const struct qmt_transport_ops qmt_shm_ops = {
	.name = "shm",
	.server_create = qmt_shm_server_create,
	.server_destroy = qmt_shm_server_destroy,
	.server_address = qmt_shm_server_address,
	.server_register = qmt_shm_server_register,
	.server_fence = qmt_shm_server_fence,
	.server_stats = qmt_shm_server_stats,
	.endpoint_create = qmt_shm_endpoint_create,
	.endpoint_destroy = qmt_shm_endpoint_destroy,
	.endpoint_register = qmt_shm_endpoint_register,
	.endpoint_post = qmt_shm_endpoint_post,
	.endpoint_wait = qmt_shm_endpoint_wait,
	.endpoint_cancel = qmt_shm_endpoint_cancel,
	.endpoint_alive = qmt_shm_endpoint_alive,
};
