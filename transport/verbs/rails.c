/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/rails.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "common/log.h"

static bool open_channel(const struct qmt_verbs_api *api, struct ibv_context *context,
			 struct ibv_comp_channel **channel)
{
	int flags;

	*channel = api->create_comp_channel(context);
	if (!*channel)
		return false;
	flags = fcntl((*channel)->fd, F_GETFL);
	return flags >= 0 && fcntl((*channel)->fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

qmla_status_t qmt_rails_open(const struct qmt_verbs_api *api, const char *spec,
			     const struct qmt_place *place, struct qmt_rails *rails)
{
	qmla_status_t status;

	memset(rails, 0, sizeof(*rails));
	status = qmt_ports_open(api, spec, place, rails->ports, &rails->count);
	if (status != QMLA_OK) {
		rails->count = 0;
		return status;
	}
	for (size_t i = 0; i < rails->count && status == QMLA_OK; i++) {
		if (!open_channel(api, rails->ports[i].context, &rails->channels[i]))
			status = QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	if (status == QMLA_OK)
		status = qmt_monitor_create(rails->ports, rails->count, &rails->monitor);
	if (status != QMLA_OK)
		qmt_rails_close(rails);
	return status;
}

void qmt_rails_close(struct qmt_rails *rails)
{
	qmt_monitor_destroy(rails->monitor);
	for (size_t i = 0; i < rails->count; i++) {
		if (rails->channels[i])
			rails->ports[i].api->destroy_comp_channel(rails->channels[i]);
	}
	qmt_ports_close(rails->ports, rails->count);
	memset(rails, 0, sizeof(*rails));
}

static bool has_windows(const struct qmt_port *port)
{
	return (port->attr.device_cap_flags &
		(IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
}

static bool all_have_windows(const struct qmt_rails *rails)
{
	for (size_t i = 0; i < rails->count; i++) {
		if (!has_windows(&rails->ports[i]))
			return false;
	}
	return true;
}

/*
 * Peers may read; nobody writes but through a window (or not at all): the rkey that
 * is given away does not allow it.
 */
static qmla_status_t register_rail(const struct qmt_port *port, struct qmt_verbs_region *region,
				   struct qmt_rail_region *rail)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
	qmla_status_t status;

	if (has_windows(port))
		access |= IBV_ACCESS_MW_BIND;
	rail->pd = port->api->alloc_pd(port->context);
	if (!rail->pd)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	status = qmt_registration_create(port, rail->pd, qmt_gpu_api(), &region->memory, access,
					 &rail->registration);
	if (status != QMLA_OK) {
		port->api->dealloc_pd(rail->pd);
		rail->pd = NULL;
	}
	return status;
}

void qmt_rails_unregister(struct qmt_rails *rails, struct qmt_verbs_region *region)
{
	for (size_t i = 0; i < rails->count; i++) {
		struct qmt_rail_region *rail = &region->rails[i];

		if (!rail->pd)
			continue;
		qmt_registration_end(rails->ports[i].api, &rail->registration);
		rails->ports[i].api->dealloc_pd(rail->pd);
		rail->pd = NULL;
	}
}

static qmla_status_t register_all(struct qmt_rails *rails, struct qmt_verbs_region *region,
				  uint64_t *smallest)
{
	qmla_status_t status = QMLA_OK;

	*smallest = UINT64_MAX;
	for (size_t i = 0; i < rails->count && status == QMLA_OK; i++) {
		struct qmt_rail_region *rail = &region->rails[i];

		status = register_rail(&rails->ports[i], region, rail);
		if (status == QMLA_OK && rail->registration.chunk_bytes < *smallest)
			*smallest = rail->registration.chunk_bytes;
	}
	if (status != QMLA_OK)
		qmt_rails_unregister(rails, region);
	return status;
}

static bool cut_alike(const struct qmt_rails *rails, const struct qmt_verbs_region *region,
		      uint64_t chunk)
{
	for (size_t i = 0; i < rails->count; i++) {
		if (region->rails[i].registration.chunk_bytes != chunk)
			return false;
	}
	return true;
}

static void announce(const struct qmt_rails *rails, const struct qmt_verbs_region *region)
{
	const struct qmt_registration *first = &region->rails[0].registration;

	qmc_info("verbs",
		 "region %" PRIu64 ": %" PRIu64
		 " bytes in %zu piece(s), %s, on %zu port(s); writes %s",
		 region->number, region->memory.bytes, first->count,
		 qmt_memory_kind_text(first->kind), rails->count,
		 region->write_mode == QMT_WRITE_WINDOW ? "through memory windows"
							: "are fetched (no memory windows)");
}

qmla_status_t qmt_rails_register(struct qmt_rails *rails, struct qmt_verbs_region *region)
{
	bool windows = all_have_windows(rails);
	uint64_t chunk;
	qmla_status_t status;

	/* A handle speaks of chunks without saying whose: every device has the same ones. */
	for (;;) {
		status = register_all(rails, region, &chunk);
		if (status != QMLA_OK)
			return status;
		if (cut_alike(rails, region, chunk))
			break;
		qmt_rails_unregister(rails, region);
		for (size_t i = 0; i < rails->count; i++)
			rails->ports[i].attr.max_mr_size = chunk;
	}
	for (size_t i = 0; i < rails->count; i++)
		windows = windows && region->rails[i].registration.kind != QMT_MEMORY_DMABUF;
	region->write_mode = windows ? QMT_WRITE_WINDOW : QMT_WRITE_PULL;
	announce(rails, region);
	return QMLA_OK;
}
