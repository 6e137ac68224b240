/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define STOCK_MAX          16
#define BATCH_KEYS_DEFAULT 1024

struct qml_stock {
	pthread_mutex_t lock;
	struct qml_connection idle[STOCK_MAX];
	size_t count;
};

static qmla_status_t copy_bytes(const ProtobufCBinaryData *from, uint8_t *bytes, size_t room,
				uint32_t *length)
{
	if (from->len == 0 || from->len > room)
		return QMLA_ERR_FORMAT;
	memcpy(bytes, from->data, from->len);
	*length = (uint32_t)from->len;
	return QMLA_OK;
}

static qmla_status_t fill_link(const Qmla__V1__ConnectResponse *response, struct qml_link *link)
{
	const struct qml_settings *settings = link->settings;

	link->ops = qmt_transport_find(response->transport);
	if (!link->ops ||
	    (settings->transport[0] && strcmp(settings->transport, response->transport) != 0)) {
		qmc_error("client", "the node chose transport '%.16s', which was not offered",
			  response->transport);
		return QMLA_ERR_UNSUPPORTED;
	}
	if (copy_bytes(&response->address, link->address.bytes, QMT_ADDRESS_MAX,
		       &link->address.length) != QMLA_OK ||
	    copy_bytes(&response->region, link->region.bytes, QMT_HANDLE_MAX,
		       &link->region.length) != QMLA_OK) {
		qmc_error("client", "the node sent no usable data address");
		return QMLA_ERR_FORMAT;
	}
	if (response->slot_bytes < settings->layout.block_bytes ||
	    response->slots > UINT64_MAX / response->slot_bytes) {
		qmc_error("client", "the node's slots hold %llu bytes, a block has %llu",
			  (unsigned long long)response->slot_bytes,
			  (unsigned long long)settings->layout.block_bytes);
		return QMLA_ERR_LAYOUT_MISMATCH;
	}
	link->incarnation = response->incarnation;
	link->region_bytes = response->slots * response->slot_bytes;
	link->max_batch_keys =
		response->max_batch_keys ? response->max_batch_keys : BATCH_KEYS_DEFAULT;
	link->max_lease_ms = response->max_lease_ms;
	return QMLA_OK;
}

qmla_status_t qml_link_create(const struct qml_settings *settings,
			      const Qmla__V1__ConnectResponse *response, struct qml_link **link)
{
	struct qml_link *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->settings = settings;
	status = fill_link(response, self);
	if (status != QMLA_OK)
		goto err_free;
	self->stock = calloc(1, sizeof(*self->stock));
	if (!self->stock) {
		status = QMLA_ERR_NO_MEMORY;
		goto err_free;
	}
	pthread_mutex_init(&self->stock->lock, NULL);
	atomic_init(&self->references, 1);
	*link = self;
	return QMLA_OK;

err_free:
	free(self);
	return status;
}

struct qml_link *qml_link_get(struct qml_link *link)
{
	atomic_fetch_add_explicit(&link->references, 1, memory_order_relaxed);
	return link;
}

void qml_link_put(struct qml_link *link)
{
	/* acq_rel: the last put sees what every other holder did before its own. */
	if (!link || atomic_fetch_sub_explicit(&link->references, 1, memory_order_acq_rel) != 1)
		return;
	for (size_t i = 0; i < link->stock->count; i++)
		link->ops->endpoint_destroy(link->stock->idle[i].endpoint);
	pthread_mutex_destroy(&link->stock->lock);
	free(link->stock);
	free(link);
}

static bool take_idle(struct qml_link *link, struct qml_connection *connection)
{
	struct qml_stock *stock = link->stock;
	bool taken = false;

	pthread_mutex_lock(&stock->lock);
	if (stock->count > 0) {
		*connection = stock->idle[--stock->count];
		taken = true;
	}
	pthread_mutex_unlock(&stock->lock);
	return taken;
}

static bool still_good(struct qml_link *link, const struct qml_connection *connection)
{
	return link->ops->endpoint_alive(connection->endpoint) &&
	       connection->memory_version == qml_registry_version(link->settings->registry);
}

bool qml_link_take(struct qml_link *link, struct qml_connection *connection)
{
	struct qml_connection made = {0};

	while (take_idle(link, &made)) {
		made.fresh = false;
		if (still_good(link, &made)) {
			*connection = made;
			return true;
		}
		qml_link_drop(link, &made);
	}
	return false;
}

qmla_status_t qml_link_dial(struct qml_link *link, qmc_time_t deadline,
			    struct qml_connection *connection)
{
	struct qmt_endpoint *endpoint = NULL;
	qmla_status_t status = link->ops->endpoint_create(&link->address, deadline, &endpoint);

	return status == QMLA_OK ? qml_link_equip(link, endpoint, connection) : status;
}

qmla_status_t qml_link_equip(struct qml_link *link, struct qmt_endpoint *endpoint,
			     struct qml_connection *connection)
{
	struct qml_connection made = {.endpoint = endpoint, .fresh = true};
	qmla_status_t status = qml_registry_apply(link->settings->registry, link->ops, endpoint,
						  &made.memory_version);

	if (status != QMLA_OK) {
		link->ops->endpoint_destroy(endpoint);
		return status;
	}
	*connection = made;
	return QMLA_OK;
}

void qml_link_give(struct qml_link *link, struct qml_connection *connection)
{
	struct qml_stock *stock = link->stock;
	bool kept = false;

	if (link->ops->endpoint_alive(connection->endpoint)) {
		pthread_mutex_lock(&stock->lock);
		if (stock->count < STOCK_MAX) {
			stock->idle[stock->count++] = *connection;
			kept = true;
		}
		pthread_mutex_unlock(&stock->lock);
	}
	if (kept)
		connection->endpoint = NULL;
	else
		qml_link_drop(link, connection);
}

void qml_link_drop(struct qml_link *link, struct qml_connection *connection)
{
	link->ops->endpoint_destroy(connection->endpoint);
	connection->endpoint = NULL;
}
