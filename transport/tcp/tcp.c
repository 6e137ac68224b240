/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/endpoint.h"
#include "transport/tcp/server.h"

const struct qmt_transport_ops qmt_tcp_ops = {
	.name = "tcp",
	.server_create = qmt_tcp_server_create,
	.server_destroy = qmt_tcp_server_destroy,
	.server_address = qmt_tcp_server_address,
	.server_register = qmt_tcp_server_register,
	.server_fence = qmt_tcp_server_fence,
	.server_stats = qmt_tcp_server_stats,
	.endpoint_create = qmt_tcp_endpoint_create,
	.endpoint_destroy = qmt_tcp_endpoint_destroy,
	.endpoint_register = qmt_tcp_endpoint_register,
	.endpoint_post = qmt_tcp_endpoint_post,
	.endpoint_wait = qmt_tcp_endpoint_wait,
	.endpoint_cancel = qmt_tcp_endpoint_cancel,
	.endpoint_alive = qmt_tcp_endpoint_alive,
};
