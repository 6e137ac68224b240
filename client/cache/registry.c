/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/registry.h"

#include <pthread.h>
#include <stdlib.h>

#define REGISTRY_AREAS_MAX 64

struct qml_registry {
	pthread_mutex_t lock;
	struct qmt_memory areas[REGISTRY_AREAS_MAX];
	uint32_t count; /* is the version too: areas are never taken away */
};

qmla_status_t qml_registry_create(struct qml_registry **registry)
{
	struct qml_registry *self = calloc(1, sizeof(*self));

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	pthread_mutex_init(&self->lock, NULL);
	*registry = self;
	return QMLA_OK;
}

void qml_registry_destroy(struct qml_registry *registry)
{
	if (!registry)
		return;
	pthread_mutex_destroy(&registry->lock);
	free(registry);
}

qmla_status_t qml_registry_add(struct qml_registry *registry, void *base, uint64_t bytes)
{
	qmla_status_t status = QMLA_ERR_RESOURCE_EXHAUSTED;

	pthread_mutex_lock(&registry->lock);
	if (registry->count < REGISTRY_AREAS_MAX) {
		registry->areas[registry->count++] =
			(struct qmt_memory){.base = base, .bytes = bytes, .fd = -1};
		status = QMLA_OK;
	}
	pthread_mutex_unlock(&registry->lock);
	return status;
}

uint32_t qml_registry_version(struct qml_registry *registry)
{
	uint32_t version;

	pthread_mutex_lock(&registry->lock);
	version = registry->count;
	pthread_mutex_unlock(&registry->lock);
	return version;
}

qmla_status_t qml_registry_apply(struct qml_registry *registry, const struct qmt_transport_ops *ops,
				 struct qmt_endpoint *endpoint, uint32_t *version)
{
	uint32_t count = qml_registry_version(registry);

	/* Areas below count are written once, before the count that was just read. */
	for (uint32_t i = 0; i < count; i++) {
		qmla_status_t status = ops->endpoint_register(endpoint, &registry->areas[i]);

		if (status != QMLA_OK)
			return status;
	}
	*version = count;
	return QMLA_OK;
}
