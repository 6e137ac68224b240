/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/settings.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "client/cache/layout.h"
#include "common/log.h"
#include "transport/transport.h"

#define DEFAULT_CONNECT_MS 1000
#define DEFAULT_CALL_MS    2000
#define DEFAULT_LEASE_MS   10000
#define DEFAULT_PROBE_MS   2000
#define MAX_REPLICAS       8
#define MAX_CONNECTIONS    64

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
	return value ? value : fallback;
}

/* Equal on two processes only when they share a kernel: what shm needs to know. */
static void read_host_id(char host_id[QML_HOST_ID_MAX])
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

	host_id[0] = '\0';
	if (!file)
		return;
	if (!fgets(host_id, QML_HOST_ID_MAX, file))
		host_id[0] = '\0';
	host_id[strcspn(host_id, "\n")] = '\0';
	fclose(file);
}

static uint32_t count_processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (uint32_t)CPU_COUNT(&set);
	return 1;
}

static qmla_status_t choose_transport(const char *name, char chosen[QML_TRANSPORT_NAME_MAX])
{
	const struct qmt_transport_ops *ops;

	chosen[0] = '\0';
	if (!name || strcmp(name, "auto") == 0)
		return QMLA_OK;
	ops = qmt_transport_find(name);
	if (strlen(name) >= QML_TRANSPORT_NAME_MAX || !ops) {
		qmc_error("client",
			  "transport '%s' is not in this build; use auto, verbs, shm or tcp", name);
		return QMLA_ERR_UNSUPPORTED;
	}
	if (ops->usable && !ops->usable()) {
		qmc_error("client",
			  "transport '%s' cannot be used here: no RDMA device with an active port, "
			  "or libibverbs.so.1 is not installed; use auto, shm or tcp",
			  name);
		return QMLA_ERR_UNSUPPORTED;
	}
	strcpy(chosen, name);
	return QMLA_OK;
}

static qmla_status_t check_numbers(const struct qml_settings *settings)
{
	if (settings->replicas > MAX_REPLICAS) {
		qmc_error("client", "replicas %u is over %d", settings->replicas, MAX_REPLICAS);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (settings->connections > MAX_CONNECTIONS) {
		qmc_error("client", "connections %u is over %d", settings->connections,
			  MAX_CONNECTIONS);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

qmla_status_t qml_settings_init(const qmla_client_config_t *config, struct qml_settings *settings)
{
	struct qml_settings made = {0};
	qmla_status_t status = qml_layout_init(&config->layout, &made.layout);

	if (status != QMLA_OK) {
		qmc_error("client", "no layout has format %d, %u layers, content %u, RoPE %u",
			  (int)config->layout.format, config->layout.layers,
			  config->layout.content_dim, config->layout.rope_dim);
		return status;
	}
	status = choose_transport(config->transport, made.transport);
	if (status != QMLA_OK)
		return status;
	made.identity = config->identity;
	made.fingerprint = qmk_layout_fingerprint(&made.layout);
	made.replicas = or_default(config->replicas, 1);
	made.connections = config->connections;
	made.processors = count_processors();
	made.lease_ms = or_default(config->lease_ms, DEFAULT_LEASE_MS);
	made.connect_ns =
		or_default(config->connect_timeout_ms, DEFAULT_CONNECT_MS) * QMC_NS_PER_MS;
	made.call_ns = or_default(config->call_timeout_ms, DEFAULT_CALL_MS) * QMC_NS_PER_MS;
	made.probe_ns = or_default(config->probe_interval_ms, DEFAULT_PROBE_MS) * QMC_NS_PER_MS;
	read_host_id(made.host_id);
	status = check_numbers(&made);
	if (status != QMLA_OK)
		return status;
	status = qml_registry_create(&made.registry);
	if (status == QMLA_OK)
		*settings = made;
	return status;
}

void qml_settings_fini(struct qml_settings *settings)
{
	qml_registry_destroy(settings->registry);
	settings->registry = NULL;
}
