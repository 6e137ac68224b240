/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * RDMA devices: which ports are up, which GID of each to use, which are near. A port
 * is opened once and shared; what may change while it is open (state, GID, LID) is asked
 * again before each connection. Any thread unless said.
 */
#ifndef QMT_VERBS_DEVICE_H
#define QMT_VERBS_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "transport/verbs/api.h"

#define QMT_RAILS_MAX       4 /**< ports used side by side */
#define QMT_DEVICE_NAME_MAX 64
#define QMT_NUMA_UNKNOWN    (-1)

/** What a connection through a port needs to know; may change with the port. */
struct qmt_port_state {
	union ibv_gid gid;
	uint32_t gid_index;
	uint32_t gid_type; /**< enum ibv_gid_type */
	uint16_t lid;
	enum ibv_mtu mtu;
	bool ethernet; /**< RoCE: addressed by GID; else InfiniBand, by LID (and GID) */
};

/** An open port. */
struct qmt_port {
	const struct qmt_verbs_api *api;
	struct ibv_context *context;
	char name[QMT_DEVICE_NAME_MAX];
	uint8_t number;
	int forced_gid; /**< -1: by rank */
	int distance;   /**< to what it was ranked against; smaller is nearer */
	struct ibv_device_attr attr;
	uint32_t max_message; /**< bytes of one message */
	/**
	 * Binding and invalidating windows must not share the send queue with what goes over the
	 * wire: Soft-RoCE does them again when it sends again, and then stands still for ever.
	 */
	bool local_alone;
	struct qmt_port_state state;
};

/** Where memory lies, to rank ports by. */
struct qmt_place {
	int numa_node;          /**< QMT_NUMA_UNKNOWN: any */
	const char *pci_device; /**< of a GPU: "0000:17:00.0"; NULL: none */
};

/**
 * Opens the ports to use, nearest first, at most QMT_RAILS_MAX. @p spec:
 * "name[:port[:gid]],…" or NULL: every active port as near as the nearest. The caller
 * closes them. QMLA_ERR_UNAVAILABLE: none is active (logged when one was asked for);
 * QMLA_ERR_NOT_FOUND: no device of that name; QMLA_ERR_INVALID_ARGUMENT: @p spec.
 */
qmla_status_t qmt_ports_open(const struct qmt_verbs_api *api, const char *spec,
			     const struct qmt_place *place, struct qmt_port *ports, size_t *count);

/** Closes what open gave. */
void qmt_ports_close(struct qmt_port *ports, size_t count);

/** Asks for state, LID, MTU and GID again. QMLA_ERR_UNAVAILABLE: down, or no GID. */
qmla_status_t qmt_port_query(const struct qmt_port *port, struct qmt_port_state *state);

/** True when some device has an active port. Remembers the answer for a second. */
bool qmt_verbs_usable(void);

/**
 * Preference of a GID for RoCE, 0 the best, negative: useless. @p visible: its net
 * device is one of this network namespace.
 */
int qmt_gid_rank(const struct ibv_gid_entry *entry, bool visible);

/**
 * How far a device is from @p place: 0 the same PCIe switch or NUMA node …; by sysfs
 * under @p sysfs, a large number when that tells nothing.
 */
int qmt_device_distance(const char *sysfs, const char *device, const struct qmt_place *place);

/** "RoCE v2 10.0.0.1" or "InfiniBand lid 7". @p text holds QMT_DEVICE_NAME_MAX characters. */
void qmt_port_text(const struct qmt_port_state *state, char *text);

#endif /* QMT_VERBS_DEVICE_H */
