/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The node's side of the transports: tcp always, shm where a directory for its
 * socket can be had, verbs where there is an RDMA device. Registers the store's
 * arenas and lets the store decide on every access (over verbs: on every write).
 */
#ifndef QMS_DATA_PLANE_H
#define QMS_DATA_PLANE_H

#include "server/store/store.h"
#include "transport/transport.h"

#define QMS_DATA_PLANE_MAX 4 /**< transports of one node */

struct qms_data_plane;

struct qms_data_plane_config {
	const char *listen;    /**< tcp: "host:port" */
	const char *advertise; /**< host that peers shall use; NULL: the bound one, or the host's
				  name for a wildcard */
	const char *shm_dir;   /**< NULL: the first usable default; "none": no shm */
	uint32_t threads, max_peers;
	int64_t idle_timeout_ns;
	const char *rdma_devices; /**< NULL: chosen; "none": no verbs; "name[:port[:gid]],…" */
};

struct qms_data_plane_path {
	const char *transport;
	struct qmt_server_address address;
	struct qmt_handle handle;
};

/**
 * Starts the transports over @p store's arenas (borrowed). QMLA_ERR_BUSY: the tcp
 * address is in use. A shm directory or RDMA device that was asked for and cannot be
 * used is an error; a default one only a message.
 */
qmla_status_t qms_data_plane_create(const struct qms_data_plane_config *config,
				    struct qms_store *store, struct qms_data_plane **plane);

/** Stops serving and waits until every access was finished. Accepts NULL. */
void qms_data_plane_destroy(struct qms_data_plane *plane);

/** Port of the tcp transport. */
uint16_t qms_data_plane_port(const struct qms_data_plane *plane);

/** Name of the @p index-th transport, best first; NULL past the last. */
const char *qms_data_plane_name(const struct qms_data_plane *plane, size_t index);

/** Figures of the @p index-th transport. */
void qms_data_plane_stats(const struct qms_data_plane *plane, size_t index,
			  struct qmt_server_stats *stats);

/**
 * Chooses the path for a client: its first wish that the node has (any order if
 * it has none); shm only when @p host_id is this machine's boot id.
 * QMLA_ERR_UNSUPPORTED: nothing in common.
 */
qmla_status_t qms_data_plane_choose(const struct qms_data_plane *plane, char *const *wishes,
				    size_t count, const char *host_id, uint32_t region,
				    struct qms_data_plane_path *path);

/**
 * The named transport's answer to a client's offer for @p region; the statuses
 * of server_answer. QMLA_ERR_UNSUPPORTED also: it takes no offers.
 */
qmla_status_t qms_data_plane_answer(const struct qms_data_plane *plane, const char *name,
				    uint32_t region, const struct qmt_offer *offer,
				    struct qmt_offer *answer);

/** One line about the @p index-th transport's devices and memory; false: nothing to say. */
bool qms_data_plane_describe(const struct qms_data_plane *plane, size_t index,
			     char text[QMT_DESCRIPTION_MAX]);

/** Store callback: @p region changes its owner; whoever could read it on its own is cut off. */
void qms_data_plane_revoke(void *plane, uint32_t region);

/** Store callback: fences every transport. May block until a server thread notices. */
void qms_data_plane_fence(void *plane, const struct qms_capability *capability);

#endif /* QMS_DATA_PLANE_H */
