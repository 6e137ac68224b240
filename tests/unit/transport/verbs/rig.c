/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int rig_setup(void **state)
{
	owner_keeps_verbs = true;
	qmt_verbs_api_use(fake_start());
	rig_use(NULL, NULL);
	return remember_descriptors(state);
}

int rig_teardown(void **state)
{
	if (check_descriptors(state) != 0)
		return -1;
	return fake_stop() ? 0 : -1;
}

static void set(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

void rig_use(const char *server, const char *client)
{
	set("QMLA_TEST_RDMA_DEVICES", server);
	set("QMLA_RDMA_DEVICES", client);
}

void rig_start(struct owner *owner, uint64_t bytes, uint32_t max_peers, int64_t idle_timeout_ns)
{
	owner_start_with(owner, "verbs", bytes, max_peers, idle_timeout_ns);
	fill_pattern(owner->memory.base, bytes, 1);
}

qmla_status_t rig_run(struct owner *owner, struct qmt_endpoint *endpoint, enum qmt_access access,
		      uint64_t offset, void *local, uint64_t length)
{
	struct qmt_op op = owner_op(owner, access, offset, local, length);

	return qmt_endpoint_run(owner->ops, endpoint, &op, 1);
}

bool rig_has_peers(struct owner *owner, uint64_t count)
{
	struct qmt_server_stats stats = {0};

	for (int i = 0; i < 2000; i++) {
		owner->ops->server_stats(owner->server, &stats);
		if (stats.peers == count)
			return true;
		sleep_ms(1);
	}
	return false;
}

struct qmt_verbs_endpoint *rig_inside(struct qmt_endpoint *endpoint)
{
	return qmt_verbs_of(endpoint);
}

enum ibv_wc_status rig_rogue_write(struct qmt_endpoint *endpoint, uint64_t address, uint32_t rkey,
				   const void *data, uint32_t bytes)
{
	struct qmt_verbs_rail *rail = &qmt_verbs_of(endpoint)->rails[0];
	const struct qmt_verbs_api *api = qmt_verbs_api();
	/* Its messages' buffers are registered; any will do. */
	struct ibv_sge sge = {(uint64_t)(uintptr_t)rail->mail.memory, bytes, rail->mail.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 0x1234,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED,
				 .sg_list = &sge,
				 .num_sge = 1},
			   *bad;
	struct ibv_wc wc;

	memcpy(rail->mail.memory, data, bytes);
	wr.wr.rdma.remote_addr = address;
	wr.wr.rdma.rkey = rkey;
	assert_int_equal(api->post_send(rail->qp.qp, &wr, &bad), 0);
	for (int i = 0; i < 2000; i++) {
		if (api->poll_cq(rail->qp.cq, 1, &wc) == 1) {
			if (wc.wr_id == 0x1234)
				return wc.status;
			continue;
		}
		sleep_ms(1);
	}
	return IBV_WC_GENERAL_ERR;
}
