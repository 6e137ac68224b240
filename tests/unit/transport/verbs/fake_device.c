/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, ports, GIDs and asynchronous events of the fake verbs. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct ibv_device **get_device_list(int *count)
{
	struct ibv_device **list = calloc(FAKE_DEVICES + 1, sizeof(struct ibv_device *));

	fake_enter();
	for (int i = 0; i < fake.count && list; i++)
		list[i] = &fake.handles[i];
	if (count)
		*count = fake.count;
	fake_leave();
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static int device_of(const struct ibv_device *device)
{
	return (int)(device - fake.handles);
}

static const char *get_device_name(struct ibv_device *device)
{
	return fake.devices[device_of(device)].name;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct fake_context *context = calloc(1, sizeof(*context));

	fake_enter();
	if (!context || fake.devices[device_of(device)].open_fails) {
		fake_leave();
		free(context);
		errno = ENODEV;
		return NULL;
	}
	context->base.device = device;
	context->base.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	context->device = device_of(device);
	LIST_INSERT_HEAD(&fake.contexts, context, link);
	fake.open_contexts++;
	fake_leave();
	return &context->base;
}

struct fake_context *fake_context_of(struct ibv_context *context)
{
	return (struct fake_context *)context;
}

static int close_device(struct ibv_context *base)
{
	struct fake_context *context = fake_context_of(base);

	fake_enter();
	fake_demand(context->unacknowledged == 0,
		    "a device is closed with events not acknowledged");
	LIST_REMOVE(context, link);
	fake.open_contexts--;
	fake_leave();
	close(base->async_fd);
	free(context);
	return 0;
}

struct fake_device *fake_facts(struct ibv_context *context)
{
	return &fake.devices[fake_context_of(context)->device];
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	const struct fake_device *device = fake_facts(context);

	memset(attr, 0, sizeof(*attr));
	fake_enter();
	attr->phys_port_cnt = 1;
	attr->vendor_id = device->soft ? 0xffffff : 0x2c9;
	attr->max_mr_size = device->max_mr_size ? device->max_mr_size : UINT64_MAX;
	attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = device->rd_atomic;
	if (device->windows)
		attr->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	fake_leave();
	return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	const struct fake_device *device = fake_facts(context);

	memset(attr, 0, sizeof(*attr));
	if (port != 1)
		return EINVAL;
	fake_enter();
	attr->state = device->state;
	attr->active_mtu = device->mtu;
	attr->lid = device->lid;
	attr->max_msg_sz = device->max_msg_sz;
	attr->gid_tbl_len = FAKE_GIDS;
	attr->link_layer = device->infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	fake_leave();
	return 0;
}

static int query_gid(struct ibv_context *context, uint32_t port, uint32_t index,
		     struct ibv_gid_entry *entry)
{
	static const union ibv_gid none;
	int result = 0;

	if (port != 1 || index >= FAKE_GIDS)
		return EINVAL;
	fake_enter();
	*entry = fake_facts(context)->gids[index];
	if (memcmp(&entry->gid, &none, sizeof(none)) == 0)
		result = ENODATA;
	fake_leave();
	return result;
}

static long query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t room)
{
	static const union ibv_gid none;
	long count = 0;

	fake_enter();
	for (uint32_t i = 0; i < FAKE_GIDS && (size_t)count < room; i++) {
		if (memcmp(&fake_facts(context)->gids[i].gid, &none, sizeof(none)) != 0)
			entries[count++] = fake_facts(context)->gids[i];
	}
	fake_leave();
	return count;
}

/* ---- events ---- */

static int get_async_event(struct ibv_context *base, struct ibv_async_event *event)
{
	struct fake_context *context = fake_context_of(base);
	eventfd_t value;

	if (eventfd_read(base->async_fd, &value) != 0)
		return -1;
	fake_enter();
	*event = context->events[context->head++ % ASYNC_MAX];
	context->unacknowledged++;
	fake_leave();
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	struct fake_context *context;

	(void)event;
	fake_enter();
	/* One thread reads at a time, so that it can only be the context with one open. */
	for (context = LIST_FIRST(&fake.contexts); context; context = LIST_NEXT(context, link)) {
		if (context->unacknowledged > 0) {
			context->unacknowledged--;
			break;
		}
	}
	fake_leave();
}

static void raise_locked(struct fake_context *context, const struct ibv_async_event *event)
{
	fake_demand(context->tail - context->head < ASYNC_MAX, "too many events");
	context->events[context->tail++ % ASYNC_MAX] = *event;
	(void)eventfd_write(context->base.async_fd, 1);
}

static void raise_port_locked(int device, enum ibv_event_type type)
{
	const struct ibv_async_event event = {.element.port_num = 1, .event_type = type};
	struct fake_context *context;

	for (context = LIST_FIRST(&fake.contexts); context; context = LIST_NEXT(context, link)) {
		if (context->device == device)
			raise_locked(context, &event);
	}
}

void fake_port_event(int device, enum ibv_event_type type)
{
	fake_enter();
	raise_port_locked(device, type);
	fake_leave();
}

void fake_set_port(int device, enum ibv_port_state state)
{
	fake_enter();
	fake.devices[device].state = state;
	raise_port_locked(device,
			  state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
	fake_leave();
}

void fake_qp_event(unsigned nth, enum ibv_event_type type)
{
	struct ibv_async_event event = {.event_type = type};

	fake_enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++) {
		if (!fake.qps[i] || nth-- > 0)
			continue;
		event.element.qp = &fake.qps[i]->base;
		raise_locked(fake_context_of(fake.qps[i]->base.context), &event);
		break;
	}
	fake_leave();
}

void fake_device_ops(struct qmt_verbs_api *api)
{
	api->get_device_list = get_device_list;
	api->free_device_list = free_device_list;
	api->get_device_name = get_device_name;
	api->open_device = open_device;
	api->close_device = close_device;
	api->query_device = query_device;
	api->query_port = query_port;
	api->query_gid = query_gid;
	api->query_gid_table = query_gid_table;
	api->get_async_event = get_async_event;
	api->ack_async_event = ack_async_event;
}
