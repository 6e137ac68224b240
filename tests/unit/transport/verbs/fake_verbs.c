/* SPDX-License-Identifier: Apache-2.0 */
/* The fake verbs' table, what tests set and what they read. */
#include "fake_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

void fake_enter(void)
{
	pthread_mutex_lock(&fake.lock);
}

void fake_leave(void)
{
	pthread_mutex_unlock(&fake.lock);
}

void fake_demand(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "fake verbs: %s\n", what);
	abort();
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	static const char *const names[] = {
		[IBV_WC_WR_FLUSH_ERR] = "flushed",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
		[IBV_WC_MW_BIND_ERR] = "window bind error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
	};

	return (size_t)status < sizeof(names) / sizeof(names[0]) && names[status] ? names[status]
										  : "error";
}

static const char *event_type_str(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_PORT_ERR:
		return "port error";
	case IBV_EVENT_GID_CHANGE:
		return "GID table change";
	case IBV_EVENT_DEVICE_FATAL:
		return "local catastrophic error";
	case IBV_EVENT_QP_FATAL:
		return "local work queue catastrophic error";
	default:
		return "event";
	}
}

static char *interface_name(unsigned int index, char *name)
{
	if (index == 0 || index >= IFINDEX_SEEN)
		return NULL;
	snprintf(name, 16, "eth%u", index);
	return name;
}

static void fill_table(struct qmt_verbs_api *api)
{
	fake_device_ops(api);
	fake_memory_ops(api);
	fake_completion_ops(api);
	fake_queue_pair_ops(api);
	api->wc_status_str = wc_status_str;
	api->event_type_str = event_type_str;
	api->interface_name = interface_name;
	api->sysfs = fake.sysfs;
}

const struct qmt_verbs_api *fake_start(void)
{
	static struct qmt_verbs_api table;

	fake_enter();
	fill_table(&table);
	memset(fake.devices, 0, sizeof(fake.devices));
	fake.count = 0;
	fake.injecting = false;
	fake.held = -1;
	fake.done = fake.signalled = fake.calls = 0;
	fake.registrations = 0;
	fake.largest_rd_atomic = 0;
	memset(fake.bytes_read, 0, sizeof(fake.bytes_read));
	strcpy(fake.sysfs, "/nonexistent");
	fake_leave();
	return &table;
}

bool fake_stop(void)
{
	unsigned left = 0;

	fake_enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++)
		left += (unsigned)(fake.qps[i] != NULL) + (fake.mrs[i] != NULL) +
			(fake.mws[i] != NULL);
	left += fake.pds + fake.cqs + fake.channels + fake.open_contexts;
	if (left)
		fprintf(stderr, "fake verbs: %u objects are left (%u contexts, %u pds, %u cqs)\n",
			left, fake.open_contexts, fake.pds, fake.cqs);
	fake_leave();
	return left == 0;
}

struct fake_device *fake_get(int device)
{
	return &fake.devices[device];
}

void fake_set_ipv4(int device, uint32_t index, uint32_t type, const uint8_t address[4])
{
	struct ibv_gid_entry entry = {
		.gid_index = index, .port_num = 1, .gid_type = type, .ndev_ifindex = 2};

	entry.gid.raw[10] = entry.gid.raw[11] = 0xff;
	memcpy(entry.gid.raw + 12, address, 4);
	fake_enter();
	fake.devices[device].gids[index] = entry;
	fake_leave();
}

int fake_add_roce(const char *name, uint8_t host)
{
	const uint8_t address[4] = {10, 0, 0, host};
	struct fake_device *device;
	int index;

	fake_enter();
	index = fake.count++;
	fake_demand(index < FAKE_DEVICES, "too many devices");
	device = &fake.devices[index];
	*device = (struct fake_device){
		.name = name,
		.state = IBV_PORT_ACTIVE,
		.mtu = IBV_MTU_4096,
		.max_msg_sz = UINT32_C(1) << 30,
		.rd_atomic = 16,
		.windows = true,
		.dmabuf_errno = EOPNOTSUPP,
	};
	device->gids[0] = (struct ibv_gid_entry){
		.gid.raw = {0xfe, 0x80, [15] = host},
		.gid_index = 0,
		.port_num = 1,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
		.ndev_ifindex = 2,
	};
	fake_leave();
	fake_set_ipv4(index, 1, IBV_GID_TYPE_ROCE_V2, address);
	return index;
}

void fake_set_sysfs(const char *root)
{
	snprintf(fake.sysfs, sizeof(fake.sysfs), "%s", root);
}

void fake_inject(enum ibv_wr_opcode opcode, unsigned skip, enum ibv_wc_status status)
{
	fake_enter();
	fake.injecting = true;
	fake.inject_opcode = opcode;
	fake.inject_skip = skip;
	fake.inject_status = status;
	fake_leave();
}

unsigned fake_qps(void)
{
	unsigned count = 0;

	fake_enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++)
		count += fake.qps[i] != NULL;
	fake_leave();
	return count;
}

unsigned fake_mrs(void)
{
	unsigned count = 0;

	fake_enter();
	for (uint32_t i = 0; i < OBJECTS_MAX; i++)
		count += fake.mrs[i] != NULL;
	fake_leave();
	return count;
}

unsigned fake_registrations(void)
{
	unsigned value;

	fake_enter();
	value = fake.registrations;
	fake_leave();
	return value;
}

uint64_t fake_work_requests(void)
{
	uint64_t value;

	fake_enter();
	value = fake.done;
	fake_leave();
	return value;
}

uint64_t fake_signalled(void)
{
	uint64_t value;

	fake_enter();
	value = fake.signalled;
	fake_leave();
	return value;
}

uint64_t fake_post_calls(void)
{
	uint64_t value;

	fake_enter();
	value = fake.calls;
	fake_leave();
	return value;
}

int fake_largest_rd_atomic(void)
{
	int value;

	fake_enter();
	value = fake.largest_rd_atomic;
	fake_leave();
	return value;
}

uint64_t fake_bytes_read(int device)
{
	uint64_t value;

	fake_enter();
	value = fake.bytes_read[device];
	fake_leave();
	return value;
}

void fake_set_fabric(int device, int fabric)
{
	fake_enter();
	fake.devices[device].fabric = fabric;
	fake_leave();
}

void fake_clear_gid(int device, uint32_t index)
{
	fake_enter();
	memset(&fake.devices[device].gids[index], 0, sizeof(fake.devices[device].gids[index]));
	fake_leave();
}
