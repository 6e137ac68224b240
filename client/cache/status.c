/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cache/calls.h"
#include "client/cache/client.h"

static void copy_text(char *to, size_t room, const char *text)
{
	snprintf(to, room, "%s", text ? text : "");
}

static void fill_figures(const Qmla__V1__StatsResponse *stats, qmla_node_status_t *node)
{
	copy_text(node->node_id, sizeof(node->node_id), stats->node_id);
	node->draining = stats->draining;
	node->incarnation = stats->incarnation;
	node->uptime_ms = stats->uptime_ms;
	node->capacity_bytes = stats->capacity_bytes;
	node->used_bytes = stats->used_bytes;
	node->blocks = stats->blocks;
	node->leases = stats->leases;
	node->tickets = stats->tickets;
	node->pins = stats->pins;
	node->lookups = stats->lookups;
	node->hits = stats->hits;
	node->commits = stats->commits;
	node->evictions = stats->evictions;
	node->rejected_full = stats->rejected_full;
	node->corrupt_reports = stats->corrupt_reports;
	node->bytes_read = stats->bytes_read;
	node->bytes_written = stats->bytes_written;
	copy_text(node->data_path, sizeof(node->data_path),
		  stats->n_data_paths ? stats->data_paths[0] : "");
}

static void fill_status(const struct qml_call *call, qmla_node_status_t *node)
{
	struct qml_link *link = qml_node_link(call->node);

	memset(node, 0, sizeof(*node));
	copy_text(node->address, sizeof(node->address), qml_node_name(call->node));
	/* Only what is in use: asking how a node does must not open a pool on it. */
	copy_text(node->transport, sizeof(node->transport), link ? link->ops->name : "");
	node->weight = qml_node_weight(call->node);
	node->status = call->status;
	if (call->status == QMLA_OK)
		fill_figures((const Qmla__V1__StatsResponse *)call->response, node);
	qml_link_put(link);
}

qmla_status_t qmla_client_status(qmla_client_t *client, uint32_t timeout_ms,
				 qmla_node_status_t *nodes, size_t *count)
{
	Qmla__V1__StatsRequest request;
	struct qml_call *calls;

	if (!client || !nodes || !count)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (*count < client->node_count)
		return QMLA_ERR_TOO_LARGE;
	calls = calloc(client->node_count, sizeof(*calls));
	if (!calls)
		return QMLA_ERR_NO_MEMORY;
	qmla__v1__stats_request__init(&request);
	/* Those left out are asked too: this is the question how they are. */
	for (size_t n = 0; n < client->node_count; n++) {
		calls[n].node = client->nodes[n];
		calls[n].path = "/qmla.v1.Cache/Stats";
		calls[n].request = &request.base;
		calls[n].response_type = &qmla__v1__stats_response__descriptor;
	}
	qml_calls_run(calls, client->node_count, qml_client_deadline(timeout_ms));
	for (size_t n = 0; n < client->node_count; n++)
		fill_status(&calls[n], &nodes[n]);
	*count = client->node_count;
	qml_calls_release(calls, client->node_count);
	free(calls);
	return QMLA_OK;
}
