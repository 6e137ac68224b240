/* SPDX-License-Identifier: Apache-2.0 */
/* Registration: split regions, memory of GPUs, and what happens when neither works. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_verbs.h"
#include "transport/verbs/memory.h"

#define MIB (UINT64_C(1) << 20)

static const struct qmt_verbs_api *api;
static struct qmt_port ports[QMT_RAILS_MAX];
static size_t port_count;
static struct ibv_pd *pd;
static int device;
static struct qmt_memory memory;

/* A GPU whose memory is all of `memory`. */
static bool exports;

static bool gpu_owns(const void *address, char pci[16])
{
	pci[0] = '\0';
	return address == memory.base;
}

static int gpu_export(void *base, size_t bytes)
{
	(void)base;
	(void)bytes;
	return exports ? memfd_create("dmabuf", MFD_CLOEXEC) : -1;
}

static void gpu_order(void *base)
{
	(void)base;
}

static bool gpu_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
	return true;
}

static struct qmt_gpu_api gpu;

static int setup(void **state)
{
	(void)state;
	api = fake_start();
	device = fake_add_roce("nic", 1);
	exports = true;
	gpu = (struct qmt_gpu_api){gpu_owns, gpu_export, gpu_order, gpu_copy, "/nonexistent"};
	memory = (struct qmt_memory){.bytes = 64 * MIB, .fd = -1};
	memory.base = mmap(NULL, memory.bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return memory.base == MAP_FAILED ? -1 : 0;
}

static void open_port(void)
{
	const struct qmt_place anywhere = {.numa_node = QMT_NUMA_UNKNOWN};

	assert_int_equal(qmt_ports_open(api, NULL, &anywhere, ports, &port_count), QMLA_OK);
	pd = api->alloc_pd(ports[0].context);
}

static int teardown(void **state)
{
	(void)state;
	if (port_count) {
		api->dealloc_pd(pd);
		qmt_ports_close(ports, port_count);
	}
	port_count = 0;
	munmap(memory.base, memory.bytes);
	return fake_stop() ? 0 : -1;
}

static qmla_status_t create(const struct qmt_gpu_api *with, struct qmt_registration *registration)
{
	return qmt_registration_create(
		&ports[0], pd, with, &memory,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND, registration);
}

static void check_cover(const struct qmt_registration *registration)
{
	uint8_t *at = memory.base;

	for (size_t i = 0; i < registration->count; i++) {
		assert_ptr_equal(registration->chunks[i]->addr, at);
		at += registration->chunks[i]->length;
	}
	assert_ptr_equal(at, (uint8_t *)memory.base + memory.bytes);
}

static void a_small_region_is_one_registration(void **state)
{
	struct qmt_registration registration;

	(void)state;
	open_port();
	assert_int_equal(create(NULL, &registration), QMLA_OK);
	assert_int_equal(registration.count, 1);
	assert_int_equal(registration.kind, QMT_MEMORY_HOST);
	check_cover(&registration);
	qmt_registration_end(api, &registration);
	assert_int_equal(fake_mrs(), 0);
}

/* Mooncake #1382: an 80 GiB region failed where 60 worked. */
static void a_region_over_max_mr_size_is_split(void **state)
{
	struct qmt_registration registration;

	(void)state;
	fake_get(device)->max_mr_size = 10 * MIB;
	open_port();
	assert_int_equal(create(NULL, &registration), QMLA_OK);
	assert_int_equal(registration.count, 7);
	assert_int_equal(registration.chunk_bytes, 10 * MIB);
	check_cover(&registration);
	assert_int_equal(qmt_chunk_left(registration.chunk_bytes, 25 * MIB), 5 * MIB);
	qmt_registration_end(api, &registration);
}

static void a_device_that_promises_too_much_is_split_further(void **state)
{
	struct qmt_registration registration;

	(void)state;
	fake_get(device)->real_mr_size = 20 * MIB;
	open_port();
	assert_int_equal(create(NULL, &registration), QMLA_OK);
	assert_int_equal(registration.chunk_bytes, 16 * MIB);
	check_cover(&registration);
	qmt_registration_end(api, &registration);
}

static void what_cannot_be_registered_leaves_nothing_behind(void **state)
{
	struct qmt_registration registration = {0};

	(void)state;
	fake_get(device)->real_mr_size = 4096;
	open_port();
	assert_int_equal(create(NULL, &registration), QMLA_ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(fake_mrs(), 0);
	fake_get(device)->max_mr_size = 256 * 1024;
	fake_get(device)->real_mr_size = 0;
	ports[0].attr.max_mr_size = 256 * 1024;
	assert_int_equal(create(NULL, &registration), QMLA_ERR_TOO_LARGE);
	assert_int_equal(fake_mrs(), 0);
}

static void gpu_memory_goes_by_dmabuf_where_the_probe_says_so(void **state)
{
	struct qmt_registration registration;

	(void)state;
	fake_get(device)->dmabuf_errno = EBADF;
	open_port();
	assert_int_equal(create(&gpu, &registration), QMLA_OK);
	assert_int_equal(registration.kind, QMT_MEMORY_DMABUF);
	check_cover(&registration);
	qmt_registration_end(api, &registration);
}

/* Mooncake #351, #2511: no peermem module; or memory that cannot be exported. */
static void gpu_memory_falls_back_to_peermem_then_to_staging(void **state)
{
	struct qmt_registration registration = {0};

	(void)state;
	open_port(); /* the probe gives EOPNOTSUPP */
	assert_int_equal(create(&gpu, &registration), QMLA_ERR_UNSUPPORTED);
	gpu.peermem = "/proc/self/exe";
	assert_int_equal(create(&gpu, &registration), QMLA_OK);
	assert_int_equal(registration.kind, QMT_MEMORY_PEERMEM);
	qmt_registration_end(api, &registration);
	/* The device can, the driver cannot. */
	fake_get(device)->dmabuf_errno = EBADF;
	exports = false;
	assert_int_equal(create(&gpu, &registration), QMLA_OK);
	assert_int_equal(registration.kind, QMT_MEMORY_PEERMEM);
	qmt_registration_end(api, &registration);
	gpu.peermem = "/nonexistent";
	assert_int_equal(create(&gpu, &registration), QMLA_ERR_UNSUPPORTED);
	assert_int_equal(fake_mrs(), 0);
}

static void ordinary_pages_are_not_huge(void **state)
{
	(void)state;
	memset(memory.base, 1, 4096);
	assert_false(qmt_memory_is_huge(memory.base));
	assert_string_equal(qmt_memory_kind_text(QMT_MEMORY_HUGE), "host memory, huge pages");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_small_region_is_one_registration),
		CASE(a_region_over_max_mr_size_is_split),
		CASE(a_device_that_promises_too_much_is_split_further),
		CASE(what_cannot_be_registered_leaves_nothing_behind),
		CASE(gpu_memory_goes_by_dmabuf_where_the_probe_says_so),
		CASE(gpu_memory_falls_back_to_peermem_then_to_staging),
		CASE(ordinary_pages_are_not_huge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
