/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints over fake verbs: pieces, rails, memory, and every way to fail. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "rig.h"
#include "transport/verbs/gpu.h"

#define SECOND QMC_NS_PER_S

static struct qmt_memory local_memory(uint8_t **base, uint64_t bytes)
{
	*base = calloc(1, bytes);
	assert_non_null(*base);
	return (struct qmt_memory){*base, bytes, -1};
}

/* ---- pieces ---- */

static void messages_are_split_at_max_msg_sz(void **state)
{
	int device = fake_add_roce("nic", 1);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local;
	struct qmt_memory memory = local_memory(&local, MIB);
	uint64_t before;

	(void)state;
	fake_get(device)->max_msg_sz = 4096;
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(owner.ops->endpoint_register(endpoint, &memory), QMLA_OK);
	before = fake_work_requests();
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 100, local, 100000), QMLA_OK);
	assert_memory_equal(local, (uint8_t *)owner.memory.base + 100, 100000);
	/* ceil(100000 / 4096), and perhaps a report. */
	assert_in_range(fake_work_requests() - before, 25, 27);
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 300000, local, 100000), QMLA_OK);
	assert_memory_equal(local, (uint8_t *)owner.memory.base + 300000, 100000);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

/* A region, and local memory, of more than one registration (Mooncake #1382). */
static void operations_cross_the_pieces_of_split_regions(void **state)
{
	int device = fake_add_roce("nic", 1);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t *local;
	struct qmt_memory memory = local_memory(&local, MIB);

	(void)state;
	fake_get(device)->max_mr_size = 65536;
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(owner.ops->endpoint_register(endpoint, &memory), QMLA_OK);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, MIB), QMLA_OK);
	assert_memory_equal(local, owner.memory.base, MIB);
	fill_pattern(local, MIB, 9);
	/* Three windows; five would be more than a grant holds. */
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 65000, local + 70000, 140000),
			 QMLA_OK);
	assert_memory_equal((uint8_t *)owner.memory.base + 65000, local + 70000, 140000);
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 65000, local, 4 * 65536),
			 QMLA_ERR_TOO_LARGE);
	assert_true(owner.ops->endpoint_alive(endpoint));
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

static void few_completions_are_asked_for(void **state)
{
	enum { COUNT = 512, SIZE = 512 };
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op *ops = calloc(COUNT, sizeof(*ops));
	uint8_t *local;
	struct qmt_memory memory = local_memory(&local, COUNT * SIZE);
	uint64_t work, told;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, COUNT * SIZE, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(owner.ops->endpoint_register(endpoint, &memory), QMLA_OK);
	work = fake_work_requests();
	told = fake_signalled();
	for (size_t i = 0; i < COUNT; i++)
		ops[i] = owner_op(&owner, QMT_READ, i * SIZE, local + i * SIZE, SIZE);
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, COUNT), QMLA_OK);
	assert_memory_equal(local, owner.memory.base, COUNT * SIZE);
	work = fake_work_requests() - work;
	told = fake_signalled() - told;
	assert_in_range(work, COUNT, COUNT + 2); /* and perhaps a report */
	assert_in_range(told, COUNT / QMT_RING, COUNT / 4);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(ops);
	free(local);
}

static void take(struct owner *owner, struct qmt_endpoint *endpoint, const struct qmt_op *expected)
{
	struct qmt_op *done = NULL;

	assert_int_equal(owner->ops->endpoint_wait(endpoint, qmc_clock_after(SECOND), &done),
			 QMLA_OK);
	assert_ptr_equal(done, expected);
	assert_int_equal(done->status, QMLA_OK);
}

/* Whoever verifies what has come must not keep the device waiting for its next reads. */
static void the_device_is_fed_before_what_came_is_used_up(void **state)
{
	enum { COUNT = 32, SIZE = 24960 };
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[COUNT];
	uint8_t *local;
	struct qmt_memory memory = local_memory(&local, (uint64_t)COUNT * SIZE);
	uint64_t work;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, (uint64_t)COUNT * SIZE, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(owner.ops->endpoint_register(endpoint, &memory), QMLA_OK);
	for (size_t i = 0; i < COUNT; i++)
		ops[i] = owner_op(&owner, QMT_READ, i * SIZE, local + i * SIZE, SIZE);
	for (size_t i = 0; i < 8; i++)
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	take(&owner, endpoint, &ops[0]); /* all eight have come by now, seven wait */
	work = fake_work_requests();
	for (size_t i = 8; i < 10; i++)
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	take(&owner, endpoint, &ops[1]);
	assert_int_equal(fake_work_requests(), work); /* 50 KB are not worth a call */
	assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[10]), QMLA_OK);
	take(&owner, endpoint, &ops[2]);
	assert_int_equal(fake_work_requests(), work + 3);
	for (size_t i = 3; i < 11; i++)
		take(&owner, endpoint, &ops[i]);
	assert_memory_equal(local, owner.memory.base, 11 * SIZE);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

/* The device begins with the first while the rest is made ready; small ones share a call. */
static void large_reads_are_posted_one_by_one_and_small_ones_together(void **state)
{
	enum { COUNT = 24, LARGE = 24960, SMALL = 512 };
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[COUNT];
	uint8_t *local;
	struct qmt_memory memory = local_memory(&local, (uint64_t)COUNT * LARGE);

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, (uint64_t)COUNT * LARGE, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(owner.ops->endpoint_register(endpoint, &memory), QMLA_OK);
	for (int round = 0; round < 2; round++) {
		size_t size = round ? SMALL : LARGE;
		uint64_t calls = fake_post_calls(), told = fake_signalled();

		for (size_t i = 0; i < COUNT; i++)
			ops[i] = owner_op(&owner, QMT_READ, i * size, local + i * size, size);
		assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, COUNT), QMLA_OK);
		assert_memory_equal(local, owner.memory.base, COUNT * size);
		calls = fake_post_calls() - calls;
		told = fake_signalled() - told;
		/* And perhaps a report, or one of the server's pings. */
		assert_in_range(calls, round ? 1 : COUNT, round ? 3 : COUNT + 2);
		assert_in_range(told, COUNT / 8, COUNT / 4);
	}
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

static void reads_under_way_are_bounded_by_what_both_devices_can(void **state)
{
	int device = fake_add_roce("nic", 1);
	struct owner owner;
	struct qmt_endpoint *endpoint;

	(void)state;
	fake_get(device)->rd_atomic = 4;
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(fake_largest_rd_atomic(), 4);
	assert_int_equal(rig_inside(endpoint)->rails[0].read_limit, 8); /* as many wait behind */
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* ---- links ---- */

static void infiniband_works_by_lid(void **state)
{
	int device = fake_add_roce("ib", 1);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[5000];

	(void)state;
	fake_get(device)->infiniband = true;
	fake_get(device)->lid = 11;
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 77, local, sizeof(local)), QMLA_OK);
	assert_memory_equal(local, (uint8_t *)owner.memory.base + 77, sizeof(local));
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

static void several_nics_share_the_load(void **state)
{
	int a = fake_add_roce("nic0", 1), b = fake_add_roce("nic1", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[64];
	uint8_t *local = malloc(4 * MIB);

	(void)state;
	rig_start(&owner, 4 * MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(fake_qps(), 4);
	fake_hold(IBV_WR_RDMA_READ);
	for (size_t i = 0; i < 64; i++) {
		ops[i] = owner_op(&owner, QMT_READ, i * 65536, local + i * 65536, 65536);
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
	/* While nothing completes the choice falls on whoever has less to do. */
	{
		struct qmt_op *none = NULL;

		assert_int_equal(owner.ops->endpoint_wait(endpoint, 0, &none), QMLA_ERR_DEADLINE);
	}
	fake_hold(-1);
	for (size_t i = 0; i < 64; i++) {
		struct qmt_op *done = NULL;

		assert_int_equal(owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &done),
				 QMLA_OK);
		assert_int_equal(done->status, QMLA_OK);
	}
	assert_memory_equal(local, owner.memory.base, 4 * MIB);
	assert_true(fake_bytes_read(a) >= MIB / 2);
	assert_true(fake_bytes_read(b) >= MIB / 2);
	assert_int_equal(fake_bytes_read(a) + fake_bytes_read(b), 4 * MIB);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

/* Mooncake #166, #1026: on a rail-only fabric not every NIC reaches every other. */
static void a_rail_that_does_not_reach_is_left_out(void **state)
{
	int a = fake_add_roce("nic0", 1), b = fake_add_roce("nic1", 2), c = fake_add_roce("far", 3);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[1000];

	(void)state;
	(void)a;
	rig_use("nic0,nic1", "nic0,far");
	fake_set_fabric(c, 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, sizeof(local)), QMLA_OK);
	assert_memory_equal(local, owner.memory.base, sizeof(local));
	assert_int_equal(fake_bytes_read(b), 0);
	assert_int_equal(fake_bytes_read(c), 0);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

static void rails_of_one_network_are_paired(void **state)
{
	const uint8_t left[4] = {10, 1, 0, 1}, right[4] = {10, 2, 0, 1};
	int a = fake_add_roce("l", 1), b = fake_add_roce("r", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	const struct qmt_verbs_endpoint *inside;

	(void)state;
	fake_set_ipv4(a, 1, IBV_GID_TYPE_ROCE_V2, left);
	fake_set_ipv4(b, 1, IBV_GID_TYPE_ROCE_V2, right);
	fake_set_fabric(b, 1);
	rig_use("l,r", "r,l");
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	inside = rig_inside(endpoint);
	/* Either side's second is of the other's network, and yet both rails work. */
	assert_true(inside->rails[0].up);
	assert_true(inside->rails[1].up);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

static void nothing_in_common_is_said_so(void **state)
{
	int a = fake_add_roce("roce", 1), b = fake_add_roce("ib", 2);
	struct qmt_endpoint *endpoint = NULL;
	struct owner owner;

	(void)state;
	(void)a;
	fake_get(b)->infiniband = true;
	rig_use("roce", "ib");
	rig_start(&owner, MIB, 0, 0);
	assert_int_equal(owner_try(&owner, &owner.address, qmc_clock_after(SECOND), &endpoint),
			 QMLA_ERR_UNSUPPORTED);
	/* Of one kind, but no way through: no word comes back. */
	fake_get(b)->infiniband = false;
	fake_set_fabric(b, 1);
	assert_int_equal(owner_try(&owner, &owner.address, qmc_clock_after(SECOND), &endpoint),
			 QMLA_ERR_UNAVAILABLE);
	owner_stop(&owner);
}

/* ---- memory ---- */

/* Mooncake #1304, NIXL #1074: registration dominated. */
static void memory_is_registered_once_for_all_endpoints(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoints[4];
	uint8_t *local;
	struct qmt_memory memory = local_memory(&local, MIB);
	unsigned first, mrs;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	for (size_t i = 0; i < 4; i++)
		endpoints[i] = owner_connect(&owner);
	mrs = fake_mrs();
	first = fake_registrations();
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(owner.ops->endpoint_register(endpoints[i], &memory), QMLA_OK);
	assert_int_equal(fake_registrations() - first, 1);
	for (size_t i = 0; i < 20; i++)
		assert_int_equal(rig_run(&owner, endpoints[i % 4], QMT_READ, i * 100, local, 5000),
				 QMLA_OK);
	assert_int_equal(fake_registrations() - first, 1);
	assert_int_equal(fake_mrs() - mrs, 1);
	for (size_t i = 0; i < 4; i++)
		owner.ops->endpoint_destroy(endpoints[i]);
	owner_stop(&owner);
	free(local);
}

static uint8_t *gpu_memory;
static unsigned gpu_copies;

static bool gpu_owns(const void *address, char pci[16])
{
	strcpy(pci, "0000:17:00.0");
	return gpu_memory && address == gpu_memory;
}

static int gpu_export(void *base, size_t bytes)
{
	(void)base;
	(void)bytes;
	return -1;
}

static void gpu_order(void *base)
{
	(void)base;
}

static bool gpu_copy(void *to, const void *from, size_t bytes)
{
	gpu_copies++;
	memcpy(to, from, bytes);
	return true;
}

/* vLLM #54536: no way for the NIC into the GPU; a bounded pinned buffer does. */
static void gpu_memory_that_no_nic_reaches_is_staged(void **state)
{
	static const struct qmt_gpu_api gpu = {gpu_owns, gpu_export, gpu_order, gpu_copy,
					       "/nonexistent"};
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_memory memory = local_memory(&gpu_memory, 9 * MIB);
	unsigned mrs;

	(void)state;
	gpu_copies = 0;
	qmt_gpu_api_use(&gpu);
	fake_add_roce("nic", 1);
	rig_start(&owner, 9 * MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(owner.ops->endpoint_register(endpoint, &memory), QMLA_OK);
	mrs = fake_mrs();
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, gpu_memory, 9 * MIB), QMLA_OK);
	assert_memory_equal(gpu_memory, owner.memory.base, 9 * MIB);
	assert_int_equal(gpu_copies, 9 * MIB / QMT_BOUNCE_BYTES);
	assert_int_equal(fake_mrs() - mrs, 1); /* however much goes through it */
	fill_pattern(gpu_memory, MIB, 4);
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, MIB, gpu_memory, MIB), QMLA_OK);
	assert_memory_equal((uint8_t *)owner.memory.base + MIB, gpu_memory, MIB);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	qmt_gpu_api_use(NULL);
	free(gpu_memory);
	gpu_memory = NULL;
}

/* sysfs: the GPU and one NIC behind one switch, the other NIC elsewhere. */
static void make_sysfs(char root[64])
{
	char command[1024];

	strcpy(root, "/tmp/qmt-sysfs-XXXXXX");
	assert_non_null(mkdtemp(root));
	snprintf(command, sizeof(command),
		 "cd %s && mkdir -p devices/p0/switch/gpu devices/p0/switch/near devices/p1/far "
		 "class/infiniband/near class/infiniband/far bus/pci/devices && "
		 "ln -s %s/devices/p0/switch/gpu bus/pci/devices/0000:17:00.0 && "
		 "ln -s %s/devices/p0/switch/near class/infiniband/near/device && "
		 "ln -s %s/devices/p1/far class/infiniband/far/device",
		 root, root, root, root);
	assert_int_equal(system(command), 0);
	fake_set_sysfs(root);
}

static void memory_of_a_gpu_goes_by_the_nic_nearest_to_it(void **state)
{
	static const struct qmt_gpu_api gpu = {gpu_owns, gpu_export, gpu_order, gpu_copy,
					       "/proc/self/exe"};
	int far = fake_add_roce("far", 1), near = fake_add_roce("near", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_memory memory = local_memory(&gpu_memory, MIB);
	char root[64], command[128];

	(void)state;
	make_sysfs(root);
	qmt_gpu_api_use(&gpu);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	assert_int_equal(owner.ops->endpoint_register(endpoint, &memory), QMLA_OK);
	for (uint64_t at = 0; at < MIB; at += MIB / 16)
		assert_int_equal(rig_run(&owner, endpoint, QMT_READ, at, gpu_memory + at, MIB / 16),
				 QMLA_OK);
	assert_memory_equal(gpu_memory, owner.memory.base, MIB);
	assert_int_equal(fake_bytes_read(near), MIB);
	assert_int_equal(fake_bytes_read(far), 0);
	/* With the near one gone the far one serves. */
	rig_inside(endpoint)->rails[0].up = rig_inside(endpoint)->domain->ports[0].name[0] == 'f';
	rig_inside(endpoint)->rails[1].up = rig_inside(endpoint)->domain->ports[1].name[0] == 'f';
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, gpu_memory, 1000), QMLA_OK);
	assert_int_equal(fake_bytes_read(far), 1000);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	qmt_gpu_api_use(NULL);
	free(gpu_memory);
	gpu_memory = NULL;
	snprintf(command, sizeof(command), "rm -rf %s", root);
	assert_int_equal(system(command), 0);
}

/* A device without memory windows: the server fetches. */
static void without_windows_the_server_fetches_what_is_written(void **state)
{
	int device = fake_add_roce("nic", 1);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	struct qmt_op ops[40];
	uint8_t *local = malloc(8 * MIB);

	(void)state;
	fake_get(device)->windows = false;
	fake_get(device)->max_mr_size = 5 * MIB;
	rig_start(&owner, 8 * MIB, 0, 0);
	endpoint = owner_connect(&owner);
	fill_pattern(local, 8 * MIB, 33);
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 0, local, 8 * MIB), QMLA_OK);
	assert_memory_equal(owner.memory.base, local, 8 * MIB);
	for (size_t i = 0; i < 40; i++)
		ops[i] = owner_op(&owner, i % 2 ? QMT_READ : QMT_WRITE, i / 2 * 100000,
				  local + i / 2 * 100000 + (i % 2 ? 4 * MIB : 0), 100000);
	fill_pattern(local, 4 * MIB, 34);
	assert_int_equal(qmt_endpoint_run(owner.ops, endpoint, ops, 40), QMLA_OK);
	assert_memory_equal(local, local + 4 * MIB, 2000000);
	/* A refusal costs the one operation. */
	owner.policy = QMLA_ERR_PERMISSION;
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 0, local, 3 * MIB),
			 QMLA_ERR_PERMISSION);
	owner.policy = QMLA_OK;
	assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 0, local, 3), QMLA_OK);
	assert_true(owner_settles(&owner, 1000));
	/* Nothing in the region can be written by any key that was given away. */
	assert_int_equal(rig_rogue_write(endpoint, (uint64_t)(uintptr_t)owner.memory.base,
					 rig_inside(endpoint)->rails[0].rkeys[0], "bad", 3),
			 IBV_WC_REM_ACCESS_ERR);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
	free(local);
}

/* ---- failure ---- */

static void fill_ops(struct owner *owner, struct qmt_endpoint *endpoint, struct qmt_op *ops,
		     size_t count, uint8_t *local)
{
	for (size_t i = 0; i < count; i++) {
		ops[i] = owner_op(owner, QMT_READ, i * 1000, local + i * 1000, 1000);
		assert_int_equal(owner->ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
}

/* Every operation comes back once, and no later than @limit. */
static void all_come_back(struct owner *owner, struct qmt_endpoint *endpoint, size_t count,
			  int64_t limit)
{
	qmc_time_t begin = qmc_clock_now();
	struct qmt_op *done;

	for (size_t i = 0; i < count; i++) {
		done = NULL;
		assert_int_equal(owner->ops->endpoint_wait(endpoint, qmc_clock_after(limit), &done),
				 QMLA_OK);
		assert_non_null(done);
	}
	assert_int_equal(owner->ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &done), QMLA_OK);
	assert_null(done);
	assert_true(qmc_clock_now() - begin < limit);
}

static void works_again(struct owner *owner)
{
	struct qmt_endpoint *endpoint = owner_connect(owner);
	uint8_t local[3000];

	assert_int_equal(rig_run(owner, endpoint, QMT_READ, 500, local, sizeof(local)), QMLA_OK);
	assert_memory_equal(local, (uint8_t *)owner->memory.base + 500, sizeof(local));
	owner->ops->endpoint_destroy(endpoint);
	assert_true(rig_has_peers(owner, 0));
	assert_int_equal(fake_qps(), 0);
}

static void a_completion_error_ends_the_endpoint_once(void **state)
{
	static const enum ibv_wc_status errors[] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR,
						    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_LOC_PROT_ERR,
						    IBV_WC_GENERAL_ERR};
	struct owner owner;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
		struct qmt_endpoint *endpoint = owner_connect(&owner);
		uint8_t local[20000];
		struct qmt_op ops[20];
		size_t good = 0;

		fake_inject(IBV_WR_RDMA_READ, 7, errors[e]);
		fill_ops(&owner, endpoint, ops, 20, local);
		all_come_back(&owner, endpoint, 20, SECOND);
		for (size_t i = 0; i < 20; i++) {
			good += ops[i].status == QMLA_OK;
			assert_true(ops[i].status == QMLA_OK ||
				    ops[i].status == QMLA_ERR_UNAVAILABLE);
		}
		assert_true(good <= 7);
		assert_false(owner.ops->endpoint_alive(endpoint));
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[0]), QMLA_ERR_UNAVAILABLE);
		owner.ops->endpoint_destroy(endpoint);
	}
	owner_stop_server(&owner);
	owner_stop(&owner);
}

static void an_error_in_the_middle_of_a_write_ends_it(void **state)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_BIND_MW,
						     IBV_WR_LOCAL_INV};
	struct owner owner;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 300 * QMC_NS_PER_MS);
	for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
		struct qmt_endpoint *endpoint = owner_connect(&owner);
		uint8_t local[20000] = {0};
		qmc_time_t begin = qmc_clock_now();

		fake_inject(opcodes[i], 0, IBV_WC_RETRY_EXC_ERR);
		assert_int_equal(rig_run(&owner, endpoint, QMT_WRITE, 0, local, sizeof(local)),
				 QMLA_ERR_UNAVAILABLE);
		assert_true(qmc_clock_now() - begin < 2 * SECOND);
		owner.ops->endpoint_destroy(endpoint);
		assert_true(owner_settles(&owner, 2000));
		assert_true(rig_has_peers(&owner, 0));
	}
	works_again(&owner);
	owner_stop(&owner);
}

static void an_event_of_the_queue_pair_ends_the_endpoint(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[5000];
	struct qmt_op ops[5], *done = NULL;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 300 * QMC_NS_PER_MS); /* then peers are pinged */
	endpoint = owner_connect(&owner);
	fake_hold(IBV_WR_RDMA_READ);
	fill_ops(&owner, endpoint, ops, 5, local);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, 0, &done), QMLA_ERR_DEADLINE);
	fake_qp_event(0, IBV_EVENT_QP_FATAL);
	all_come_back(&owner, endpoint, 5, SECOND);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(ops[i].status, QMLA_ERR_UNAVAILABLE);
	owner.ops->endpoint_destroy(endpoint);
	fake_hold(-1);
	works_again(&owner);
	owner_stop(&owner);
}

/* Mooncake #3596, #3523: after a port flap queue pairs were never rebuilt. */
static void a_port_goes_down_and_comes_up(void **state)
{
	int server = fake_add_roce("s", 1), client = fake_add_roce("c", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint, *none = NULL;
	uint8_t local[5000];
	struct qmt_op ops[5], *done = NULL;

	(void)state;
	(void)server;
	rig_use("s", "c");
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	fake_hold(IBV_WR_RDMA_READ);
	fill_ops(&owner, endpoint, ops, 5, local);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, 0, &done), QMLA_ERR_DEADLINE);
	fake_set_port(client, IBV_PORT_DOWN);
	all_come_back(&owner, endpoint, 5, SECOND);
	assert_int_equal(ops[4].status, QMLA_ERR_UNAVAILABLE);
	owner.ops->endpoint_destroy(endpoint);
	fake_hold(-1);
	assert_int_equal(owner_try(&owner, &owner.address, qmc_clock_after(SECOND), &none),
			 QMLA_ERR_UNAVAILABLE);
	fake_set_port(client, IBV_PORT_ACTIVE);
	endpoint = owner_connect(&owner);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, 5000), QMLA_OK);
	/* The server's own: it drops its peers, and takes new ones when it is back. */
	fake_set_port(server, IBV_PORT_DOWN);
	assert_true(rig_has_peers(&owner, 0));
	assert_int_not_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, 5000), QMLA_OK);
	owner.ops->endpoint_destroy(endpoint);
	fake_set_port(server, IBV_PORT_ACTIVE);
	works_again(&owner);
	owner_stop(&owner);
}

/* NCCL #2157, #2183: the GID's place in the table changed with a flap. */
static void a_gid_that_moves_is_looked_up_again(void **state)
{
	const uint8_t address[4] = {10, 0, 0, 2}, more[4] = {10, 0, 7, 7};
	int server = fake_add_roce("s", 1), client = fake_add_roce("c", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[100];

	(void)state;
	(void)server;
	rig_use("s", "c");
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	/* One more address is none of a connection's business. */
	fake_set_ipv4(client, 4, IBV_GID_TYPE_ROCE_V2, more);
	fake_port_event(client, IBV_EVENT_GID_CHANGE);
	sleep_ms(50);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, 100), QMLA_OK);
	fake_clear_gid(client, 4);
	fake_clear_gid(client, 1);
	fake_set_ipv4(client, 6, IBV_GID_TYPE_ROCE_V2, address);
	fake_port_event(client, IBV_EVENT_GID_CHANGE);
	for (int i = 0; i < 1000 && owner.ops->endpoint_alive(endpoint); i++)
		sleep_ms(1);
	assert_false(owner.ops->endpoint_alive(endpoint));
	owner.ops->endpoint_destroy(endpoint);
	endpoint = owner_connect(&owner);
	assert_int_equal(rig_inside(endpoint)->rails[0].qp.state.gid_index, 6);
	assert_int_equal(rig_run(&owner, endpoint, QMT_READ, 0, local, 100), QMLA_OK);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

static void a_dead_device_is_opened_anew(void **state)
{
	int server = fake_add_roce("s", 1), client = fake_add_roce("c", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[100];

	(void)state;
	rig_use("s", "c");
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	fake_port_event(client, IBV_EVENT_DEVICE_FATAL);
	for (int i = 0; i < 1000 && owner.ops->endpoint_alive(endpoint); i++)
		sleep_ms(1);
	assert_false(owner.ops->endpoint_alive(endpoint));
	/* The old one's device stays open until it is destroyed; the new one's is another. */
	{
		struct qmt_endpoint *fresh = owner_connect(&owner);

		assert_ptr_not_equal(rig_inside(fresh)->domain, rig_inside(endpoint)->domain);
		assert_int_equal(rig_run(&owner, fresh, QMT_READ, 0, local, 100), QMLA_OK);
		owner.ops->endpoint_destroy(fresh);
	}
	owner.ops->endpoint_destroy(endpoint);
	fake_port_event(server, IBV_EVENT_DEVICE_FATAL);
	assert_true(rig_has_peers(&owner, 0));
	sleep_ms(50);
	works_again(&owner);
	owner_stop(&owner);
}

/* NIXL PR #2047: a transfer was in progress for ever. */
static void a_deadline_on_the_wire_ends_the_endpoint(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[5000] = {0};
	struct qmt_op ops[5];

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 300 * QMC_NS_PER_MS); /* then peers are pinged */
	endpoint = owner_connect(&owner);
	fake_hold(IBV_WR_RDMA_READ);
	for (size_t i = 0; i < 5; i++) {
		ops[i] = owner_op(&owner, QMT_READ, i * 1000, local + i * 1000, 1000);
		if (i == 2)
			ops[i].deadline = qmc_clock_after(50 * QMC_NS_PER_MS);
		assert_int_equal(owner.ops->endpoint_post(endpoint, &ops[i]), QMLA_OK);
	}
	all_come_back(&owner, endpoint, 5, SECOND);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(ops[i].status, i == 2 ? QMLA_ERR_DEADLINE : QMLA_ERR_UNAVAILABLE);
	/* Released now, it touches nothing: the queue pair is gone. */
	fake_hold(-1);
	for (size_t i = 0; i < sizeof(local); i++)
		assert_int_equal(local[i], 0);
	owner.ops->endpoint_destroy(endpoint);
	works_again(&owner);
	owner_stop(&owner);
}

/* The server's device vanishes while a write waits for its grant: no request is there to fail. */
static void a_writer_that_waits_finds_out_that_its_server_is_gone(void **state)
{
	int server = fake_add_roce("s", 1), client = fake_add_roce("c", 2);
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[100] = {0};
	struct qmt_op op, *done = NULL;
	qmc_time_t begin;

	(void)state;
	(void)server;
	rig_use("s", "c");
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	fake_hold(IBV_WR_BIND_MW);
	op = owner_op(&owner, QMT_WRITE, 0, local, 100);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_OK);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, 0, &done), QMLA_ERR_DEADLINE);
	for (int i = 0; i < 1000 && owner_in_flight(&owner) == 0; i++)
		sleep_ms(1);
	fake_set_fabric(client, 1);
	begin = qmc_clock_now();
	assert_int_equal(owner.ops->endpoint_wait(endpoint, QMC_TIME_NEVER, &done), QMLA_OK);
	assert_int_equal(op.status, QMLA_ERR_UNAVAILABLE);
	assert_true(qmc_clock_now() - begin < 2 * SECOND);
	fake_set_fabric(client, 0);
	fake_hold(-1);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

/* Polling stops, the device rings, the thread sleeps. */
static void a_waiting_endpoint_burns_no_core(void **state)
{
	struct owner owner;
	struct qmt_endpoint *endpoint;
	uint8_t local[1000];
	struct qmt_op op, *done = NULL;
	struct rusage before, after;
	int64_t used_us;

	(void)state;
	fake_add_roce("nic", 1);
	rig_start(&owner, MIB, 0, 0);
	endpoint = owner_connect(&owner);
	fake_hold(IBV_WR_RDMA_READ);
	op = owner_op(&owner, QMT_READ, 0, local, 1000);
	assert_int_equal(owner.ops->endpoint_post(endpoint, &op), QMLA_OK);
	getrusage(RUSAGE_SELF, &before);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, qmc_clock_after(SECOND), &done),
			 QMLA_ERR_DEADLINE);
	getrusage(RUSAGE_SELF, &after);
	used_us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 +
		  (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
		  after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
		  before.ru_stime.tv_usec;
	assert_true(used_us < 20000); /* two per cent */
	fake_hold(-1);
	assert_int_equal(owner.ops->endpoint_wait(endpoint, qmc_clock_after(SECOND), &done),
			 QMLA_OK);
	assert_ptr_equal(done, &op);
	assert_int_equal(op.status, QMLA_OK);
	owner.ops->endpoint_destroy(endpoint);
	owner_stop(&owner);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(messages_are_split_at_max_msg_sz),
		CASE(operations_cross_the_pieces_of_split_regions),
		CASE(few_completions_are_asked_for),
		CASE(the_device_is_fed_before_what_came_is_used_up),
		CASE(large_reads_are_posted_one_by_one_and_small_ones_together),
		CASE(reads_under_way_are_bounded_by_what_both_devices_can),
		CASE(infiniband_works_by_lid),
		CASE(several_nics_share_the_load),
		CASE(a_rail_that_does_not_reach_is_left_out),
		CASE(rails_of_one_network_are_paired),
		CASE(nothing_in_common_is_said_so),
		CASE(memory_is_registered_once_for_all_endpoints),
		CASE(gpu_memory_that_no_nic_reaches_is_staged),
		CASE(memory_of_a_gpu_goes_by_the_nic_nearest_to_it),
		CASE(without_windows_the_server_fetches_what_is_written),
		CASE(a_completion_error_ends_the_endpoint_once),
		CASE(an_error_in_the_middle_of_a_write_ends_it),
		CASE(an_event_of_the_queue_pair_ends_the_endpoint),
		CASE(a_port_goes_down_and_comes_up),
		CASE(a_gid_that_moves_is_looked_up_again),
		CASE(a_dead_device_is_opened_anew),
		CASE(a_deadline_on_the_wire_ends_the_endpoint),
		CASE(a_writer_that_waits_finds_out_that_its_server_is_gone),
		CASE(a_waiting_endpoint_burns_no_core),
	};

	if (argc > 1) /* one of them */
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
