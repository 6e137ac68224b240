/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/device.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/server.h"

const struct qmt_transport_ops qmt_verbs_ops = {
	.name = "verbs",
	.one_sided = true,
	.usable = qmt_verbs_usable,
	.server_create = qmt_verbs_server_create,
	.server_destroy = qmt_verbs_server_destroy,
	.server_address = qmt_verbs_server_address,
	.server_register = qmt_verbs_server_register,
	.server_fence = qmt_verbs_server_fence,
	.server_stats = qmt_verbs_server_stats,
	.server_revoke = qmt_verbs_server_revoke,
	.server_describe = qmt_verbs_server_describe,
	.endpoint_offer = qmt_verbs_endpoint_offer,
	.server_answer = qmt_verbs_server_answer,
	.endpoint_complete = qmt_verbs_endpoint_complete,
	.endpoint_destroy = qmt_verbs_endpoint_destroy,
	.endpoint_register = qmt_verbs_endpoint_register,
	.endpoint_post = qmt_verbs_endpoint_post,
	.endpoint_wait = qmt_verbs_endpoint_wait,
	.endpoint_cancel = qmt_verbs_endpoint_cancel,
	.endpoint_alive = qmt_verbs_endpoint_alive,
};
