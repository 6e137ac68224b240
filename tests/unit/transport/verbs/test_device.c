/* SPDX-License-Identifier: Apache-2.0 */
/* Which device, port and GID are chosen. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_verbs.h"
#include "transport/verbs/device.h"
#include "transport/verbs/qp.h"

static const struct qmt_verbs_api *api;
static const struct qmt_place anywhere = {.numa_node = QMT_NUMA_UNKNOWN};

static int setup(void **state)
{
	(void)state;
	api = fake_start();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return fake_stop() ? 0 : -1;
}

static struct ibv_gid_entry gid6(uint32_t index, uint32_t type, const uint8_t first[4])
{
	struct ibv_gid_entry entry = {
		.gid_index = index, .port_num = 1, .gid_type = type, .ndev_ifindex = 2};

	memcpy(entry.gid.raw, first, 4);
	entry.gid.raw[15] = 9;
	return entry;
}

static uint32_t chosen_gid(void)
{
	struct qmt_port ports[QMT_RAILS_MAX];
	size_t count = 0;
	uint32_t index;

	assert_int_equal(qmt_ports_open(api, NULL, &anywhere, ports, &count), QMLA_OK);
	assert_int_equal(count, 1);
	index = ports[0].state.gid_index;
	qmt_ports_close(ports, count);
	return index;
}

/* Mooncake #2729, #946, ATOM #1748: a link-local or RoCE v1 GID was picked. */
static void a_routable_roce_v2_gid_is_preferred(void **state)
{
	const uint8_t ten[4] = {10, 0, 0, 1}, zeroconf[4] = {169, 254, 3, 3};
	int device = fake_add_roce("nic", 1);

	(void)state;
	fake_set_ipv4(device, 1, IBV_GID_TYPE_ROCE_V1, ten);
	fake_set_ipv4(device, 2, IBV_GID_TYPE_ROCE_V2, zeroconf);
	fake_set_ipv4(device, 5, IBV_GID_TYPE_ROCE_V2, ten);
	assert_int_equal(chosen_gid(), 5);
}

static void ipv6_only_networks_get_their_unique_local_gid(void **state)
{
	static const uint8_t ula[4] = {0xfd, 0x12};
	int device = fake_add_roce("nic", 1);

	(void)state;
	memset(&fake_get(device)->gids[1], 0, sizeof(fake_get(device)->gids[1]));
	fake_get(device)->gids[4] = gid6(4, IBV_GID_TYPE_ROCE_V2, ula);
	assert_int_equal(chosen_gid(), 4);
}

static void ipv4_is_taken_before_ipv6(void **state)
{
	static const uint8_t global[4] = {0x20, 0x01};
	int device = fake_add_roce("nic", 1);

	(void)state;
	fake_get(device)->gids[7] = fake_get(device)->gids[1];
	fake_get(device)->gids[7].gid_index = 7;
	fake_get(device)->gids[1] = gid6(1, IBV_GID_TYPE_ROCE_V2, global);
	assert_int_equal(chosen_gid(), 7);
}

/* A GID of another network namespace ranks behind one's own, but before none at all. */
static void a_gid_bound_to_a_local_net_device_comes_first(void **state)
{
	const uint8_t other[4] = {10, 9, 9, 9};
	int device = fake_add_roce("nic", 1);

	(void)state;
	fake_set_ipv4(device, 2, IBV_GID_TYPE_ROCE_V2, other);
	fake_get(device)->gids[1].ndev_ifindex = 5000;
	assert_int_equal(chosen_gid(), 2);
	fake_get(device)->gids[2].ndev_ifindex = 0;
	assert_int_equal(chosen_gid(), 1);
}

static void link_local_is_the_last_resort(void **state)
{
	int device = fake_add_roce("nic", 1);

	(void)state;
	memset(&fake_get(device)->gids[1], 0, sizeof(fake_get(device)->gids[1]));
	assert_int_equal(chosen_gid(), 0);
}

static void a_gid_that_does_not_prove_itself_is_passed_over(void **state)
{
	const uint8_t next[4] = {10, 0, 0, 2};
	int device = fake_add_roce("nic", 1);

	(void)state;
	fake_set_ipv4(device, 3, IBV_GID_TYPE_ROCE_V2, next);
	fake_get(device)->bad_gid[1] = true;
	assert_int_equal(chosen_gid(), 3);
}

static void a_device_port_and_gid_can_be_named(void **state)
{
	struct qmt_port ports[QMT_RAILS_MAX];
	size_t count = 0;

	(void)state;
	fake_add_roce("a", 1);
	fake_add_roce("b", 2);
	assert_int_equal(qmt_ports_open(api, "b:1:0", &anywhere, ports, &count), QMLA_OK);
	assert_int_equal(count, 1);
	assert_string_equal(ports[0].name, "b");
	assert_int_equal(ports[0].state.gid_index, 0);
	qmt_ports_close(ports, count);
}

/* aibrix #1228, InfiniStore #167: a wrong device name or a port that is down crashed. */
static void wrong_names_and_ports_that_are_down_are_clear_errors(void **state)
{
	struct qmt_port ports[QMT_RAILS_MAX];
	size_t count = 0;
	int device;

	(void)state;
	assert_int_equal(qmt_ports_open(api, NULL, &anywhere, ports, &count), QMLA_ERR_UNAVAILABLE);
	device = fake_add_roce("nic", 1);
	assert_int_equal(qmt_ports_open(api, "nix", &anywhere, ports, &count), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmt_ports_open(api, "nic:x", &anywhere, ports, &count),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmt_ports_open(api, "nic:1:300", &anywhere, ports, &count),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmt_ports_open(api, "nic,,", &anywhere, ports, &count),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmt_ports_open(api, "nic:2", &anywhere, ports, &count),
			 QMLA_ERR_UNAVAILABLE);
	fake_get(device)->state = IBV_PORT_DOWN;
	assert_int_equal(qmt_ports_open(api, NULL, &anywhere, ports, &count), QMLA_ERR_UNAVAILABLE);
	fake_get(device)->state = IBV_PORT_ACTIVE;
	fake_get(device)->open_fails = true;
	assert_int_equal(qmt_ports_open(api, NULL, &anywhere, ports, &count), QMLA_ERR_UNAVAILABLE);
	assert_int_equal(count, 0);
}

static void infiniband_is_addressed_by_lid(void **state)
{
	int device = fake_add_roce("ib", 1);
	struct qmt_port ports[QMT_RAILS_MAX];
	char text[QMT_DEVICE_NAME_MAX];
	size_t count = 0;

	(void)state;
	fake_get(device)->infiniband = true;
	fake_get(device)->lid = 42;
	assert_int_equal(qmt_ports_open(api, NULL, &anywhere, ports, &count), QMLA_OK);
	assert_false(ports[0].state.ethernet);
	assert_int_equal(ports[0].state.lid, 42);
	qmt_port_text(&ports[0].state, text);
	assert_string_equal(text, "InfiniBand lid 42");
	qmt_ports_close(ports, count);
}

static void only_fabrics_that_can_meet_are_paired(void **state)
{
	struct qmt_qp_address roce = {.ethernet = true}, one = {.gid.raw = {0xfe, 0x80, [7] = 1}},
			      two = {.gid.raw = {0xfe, 0x80, [7] = 2}};

	(void)state;
	assert_true(qmt_qp_can_pair(&roce, &roce));
	assert_false(qmt_qp_can_pair(&roce, &one));
	assert_true(qmt_qp_can_pair(&one, &one));
	assert_false(qmt_qp_can_pair(&one, &two)); /* another subnet: no LID leads there */
	assert_int_equal(qmt_gid_common_bits(&one.gid, &two.gid), 62);
	assert_int_equal(qmt_gid_common_bits(&one.gid, &one.gid), 128);
}

/* ---- nearness, from a sysfs of our own ---- */

static char root[64];

static void make(const char *format, const char *a, const char *b)
{
	char command[512], path[256];

	snprintf(path, sizeof(path), format, a, b);
	snprintf(command, sizeof(command), "mkdir -p %s/%s", root, path);
	assert_int_equal(system(command), 0);
}

static void put(const char *device, const char *pci, const char *node)
{
	char command[1024];

	make("%s%s", pci, "");
	make("class/infiniband/%s%s", device, "");
	snprintf(command, sizeof(command),
		 "ln -s %s/%s %s/class/infiniband/%s/device && echo %s > %s/%s/numa_node", root,
		 pci, root, device, node, root, pci);
	assert_int_equal(system(command), 0);
}

static int make_sysfs(void **state)
{
	setup(state);
	strcpy(root, "/tmp/qmt-sysfs-XXXXXX");
	if (!mkdtemp(root))
		return -1;
	fake_set_sysfs(root);
	return 0;
}

static int drop_sysfs(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command) == 0 ? teardown(state) : -1;
}

static void the_nearest_numa_node_wins_and_its_ports_are_rails(void **state)
{
	const struct qmt_place place = {.numa_node = 1};
	struct qmt_port ports[QMT_RAILS_MAX];
	size_t count = 0;

	(void)state;
	fake_add_roce("far0", 1);
	fake_add_roce("near1", 2);
	fake_add_roce("near0", 3);
	put("far0", "devices/pci0000:00/0000:00:01.0", "0");
	put("near1", "devices/pci0000:80/0000:80:02.0", "1");
	put("near0", "devices/pci0000:80/0000:80:01.0", "1");
	assert_int_equal(qmt_ports_open(api, NULL, &place, ports, &count), QMLA_OK);
	assert_int_equal(count, 2);
	assert_string_equal(ports[0].name, "near0");
	assert_string_equal(ports[1].name, "near1");
	qmt_ports_close(ports, count);
	/* Who names them gets them all, nearest first. */
	assert_int_equal(qmt_ports_open(api, "far0,near1", &place, ports, &count), QMLA_OK);
	assert_int_equal(count, 2);
	assert_string_equal(ports[0].name, "near1");
	qmt_ports_close(ports, count);
}

static void a_nic_behind_the_gpus_switch_is_nearest_to_it(void **state)
{
	const struct qmt_place place = {.numa_node = QMT_NUMA_UNKNOWN,
					.pci_device = "0000:17:00.0"};
	char command[512];

	(void)state;
	make("devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:16:04.0/0000:17:00.0%s%s", "", "");
	make("bus/pci/devices%s%s", "", "");
	snprintf(command, sizeof(command),
		 "ln -s %s/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:16:04.0/0000:17:00.0 "
		 "%s/bus/pci/devices/0000:17:00.0",
		 root, root);
	assert_int_equal(system(command), 0);
	/* Same switch; same root port; another root complex. */
	put("switch", "devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:16:08.0/0000:18:00.0",
	    "0");
	put("bridge", "devices/pci0000:15/0000:15:02.0/0000:19:00.0", "0");
	put("other", "devices/pci0000:80/0000:80:02.0/0000:81:00.0", "1");
	assert_true(qmt_device_distance(root, "switch", &place) <
		    qmt_device_distance(root, "bridge", &place));
	assert_true(qmt_device_distance(root, "bridge", &place) <
		    qmt_device_distance(root, "other", &place));
	assert_true(qmt_device_distance(root, "absent", &place) >
		    qmt_device_distance(root, "other", &place));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_routable_roce_v2_gid_is_preferred),
		CASE(ipv6_only_networks_get_their_unique_local_gid),
		CASE(ipv4_is_taken_before_ipv6),
		CASE(a_gid_bound_to_a_local_net_device_comes_first),
		CASE(link_local_is_the_last_resort),
		CASE(a_gid_that_does_not_prove_itself_is_passed_over),
		CASE(a_device_port_and_gid_can_be_named),
		CASE(wrong_names_and_ports_that_are_down_are_clear_errors),
		CASE(infiniband_is_addressed_by_lid),
		CASE(only_fabrics_that_can_meet_are_paired),
		cmocka_unit_test_setup_teardown(the_nearest_numa_node_wins_and_its_ports_are_rails,
						make_sysfs, drop_sysfs),
		cmocka_unit_test_setup_teardown(a_nic_behind_the_gpus_switch_is_nearest_to_it,
						make_sysfs, drop_sysfs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
