/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/client.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define CREW_MAX 64

const char *qmla_version(void)
{
	return QMLA_VERSION;
}

qmla_status_t qmla_log_set_level(const char *level)
{
	enum qmc_log_level parsed;

	if (!level || qmc_log_level_parse(level, &parsed) != QMLA_OK)
		return QMLA_ERR_INVALID_ARGUMENT;
	qmc_log_configure(parsed, QMC_LOG_TEXT);
	return QMLA_OK;
}

qmc_time_t qml_client_deadline(uint32_t timeout_ms)
{
	return qmc_clock_after((int64_t)timeout_ms * QMC_NS_PER_MS);
}

qmla_status_t qml_client_check_keys(const qmla_client_t *client, const qmla_key_t *keys,
				    size_t count)
{
	if (!client || (count && !keys)) {
		qmc_error("client", "a client and keys are needed, NULL was given");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

size_t qml_client_depth(const qmla_client_t *client)
{
	size_t depth = (size_t)client->settings.replicas + 1;

	return depth < client->node_count ? depth : client->node_count;
}

/* A caller built against an older header has a shorter structure; the rest is zero. */
static qmla_status_t copy_config(const qmla_client_config_t *given, qmla_client_config_t *config)
{
	if (!given || given->struct_size < offsetof(qmla_client_config_t, connections) ||
	    given->struct_size > sizeof(*config)) {
		qmc_error("client", "struct_size must be sizeof(qmla_client_config_t) of the "
				    "library's own header or of an older one");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	memset(config, 0, sizeof(*config));
	memcpy(config, given, given->struct_size);
	if (!config->nodes) {
		qmc_error("client", "no nodes were given");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

static void node_lost(void *user)
{
	qmla_client_t *client = user;

	qml_background_wake(client->background);
}

static qmla_status_t create_nodes(qmla_client_t *client, const qmla_client_config_t *config)
{
	const struct qmp_tls tls = {
		.ca_file = config->tls_ca_file,
		.certificate_file = config->tls_certificate_file,
		.key_file = config->tls_key_file,
	};
	bool secure = tls.ca_file || tls.certificate_file || tls.key_file;
	struct qml_nodespec *specs;
	size_t count;
	qmla_status_t status = qml_nodelist_parse(config->nodes, &specs, &count);

	if (status != QMLA_OK)
		return status;
	client->nodes = calloc(count, sizeof(struct qml_node *));
	client->places = calloc(count, sizeof(*client->places));
	if (!client->nodes || !client->places)
		status = QMLA_ERR_NO_MEMORY;
	for (size_t i = 0; status == QMLA_OK && i < count; i++) {
		client->places[i].seed = qml_place_seed(specs[i].name);
		client->places[i].weight = specs[i].weight;
		status = qml_node_create(&specs[i], &client->settings, secure ? &tls : NULL,
					 node_lost, client, &client->nodes[i]);
		client->node_count += status == QMLA_OK;
	}
	free(specs);
	return status;
}

qmla_status_t qmla_client_create(const qmla_client_config_t *config, qmla_client_t **client)
{
	qmla_client_config_t copy;
	qmla_client_t *self;
	qmla_status_t status = copy_config(config, &copy);

	if (status != QMLA_OK)
		return status;
	if (!client)
		return QMLA_ERR_INVALID_ARGUMENT;
	self = calloc(1, sizeof(*self));
	if (!self)
		return QMLA_ERR_NO_MEMORY;
	status = qml_settings_init(&copy, &self->settings);
	if (status == QMLA_OK)
		status = create_nodes(self, &copy);
	if (status == QMLA_OK)
		status = qml_crew_create(CREW_MAX, &self->crew);
	if (status == QMLA_OK)
		status = qml_background_create(self->nodes, self->node_count, &self->background);
	if (status != QMLA_OK) {
		qmla_client_destroy(self);
		return status;
	}
	*client = self;
	return QMLA_OK;
}

void qmla_client_destroy(qmla_client_t *client)
{
	if (!client)
		return;
	qml_background_destroy(client->background);
	qml_crew_destroy(client->crew);
	for (size_t i = 0; i < client->node_count; i++)
		qml_node_destroy(client->nodes[i]);
	free(client->nodes);
	free(client->places);
	qml_settings_fini(&client->settings);
	free(client);
}

qmla_status_t qmla_client_register_memory(qmla_client_t *client, void *base, uint64_t bytes)
{
	qmla_status_t status;

	if (!client || !base || bytes == 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qml_registry_add(client->settings.registry, base, bytes);
	if (status != QMLA_OK)
		qmc_error("client", "too many memory areas; register fewer, larger ones");
	return status;
}
