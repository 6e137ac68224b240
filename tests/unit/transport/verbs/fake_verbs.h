/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A table of verbs in this process: devices, ports and GIDs as a test sets them up,
 * queue pairs that move bytes between each other by memcpy, keys that are checked as a
 * device checks them, and failures on request. What real verbs forbid (a registration
 * taken away under a window, an event not acknowledged) ends the test. Any thread.
 */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include <stdbool.h>

#include "transport/verbs/api.h"

#define FAKE_DEVICES 8
#define FAKE_GIDS    8

struct fake_device {
	const char *name;
	bool infiniband;
	int fabric; /**< devices of different fabrics do not reach each other */
	enum ibv_port_state state;
	uint16_t lid;
	enum ibv_mtu mtu;
	struct ibv_gid_entry gids[FAKE_GIDS];
	bool bad_gid[FAKE_GIDS]; /**< create_ah refuses it */
	uint64_t max_mr_size;    /**< 0: any */
	uint64_t real_mr_size;   /**< what it can do in truth; 0: as it says */
	uint32_t max_msg_sz;
	int rd_atomic;
	bool windows;
	int dmabuf_errno; /**< what the probe gives: EBADF is support */
	bool open_fails;
	bool soft; /**< Soft-RoCE: local work behind or before messages on the wire ends the test */
};

/** The table, with no devices yet; and forgets everything. */
const struct qmt_verbs_api *fake_start(void);

/** Checks that nothing was left open; true when so. */
bool fake_stop(void);

/** A RoCE device with a link-local and a routable v2 GID, 10.0.0.@p host; its index. */
int fake_add_roce(const char *name, uint8_t host);

/** For changes before it is opened: no lock is taken. */
struct fake_device *fake_get(int device);

/** "::ffff:a.b.c.d" at @p index. */
void fake_set_ipv4(int device, uint32_t index, uint32_t type, const uint8_t address[4]);

/** Moves the device to another fabric, or takes a GID away, at any time. */
void fake_set_fabric(int device, int fabric);
void fake_clear_gid(int device, uint32_t index);

void fake_set_sysfs(const char *root);

/** Sets the port's state and tells every context that has the device open. */
void fake_set_port(int device, enum ibv_port_state state);

/** An event of a port or a device. */
void fake_port_event(int device, enum ibv_event_type type);

/** An event of the queue pair with the @p nth lowest number that exists. */
void fake_qp_event(unsigned nth, enum ibv_event_type type);

/** After @p skip more of @p opcode one fails with @p status. */
void fake_inject(enum ibv_wr_opcode opcode, unsigned skip, enum ibv_wc_status status);

/** While held, work requests of @p opcode (and what follows them) stand still. -1: release. */
void fake_hold(int opcode);

/** Objects of each kind that exist. */
unsigned fake_qps(void);
unsigned fake_mrs(void);
/** Registrations made since the start. */
unsigned fake_registrations(void);
/** Bytes moved, and work requests and signalled ones that completed. */
uint64_t fake_work_requests(void);
uint64_t fake_signalled(void);
/** Calls of post_send. */
uint64_t fake_post_calls(void);
/** The most READs that were under way by the negotiated limit of any queue pair. */
int fake_largest_rd_atomic(void);
/** Bytes moved through @p device by READs. */
uint64_t fake_bytes_read(int device);

#endif /* FAKE_VERBS_H */
