/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Moves bytes between registered regions of two processes. One table of
 * operations, several back ends: verbs, shm, tcp.
 *
 * Roles. The owner of memory (a cache node) creates a `server`, registers
 * regions with it and exports their handles; the other side (a worker) creates
 * an `endpoint` from the server's address and reads or writes those regions.
 * Addresses, handles and capabilities are opaque bytes that the control plane
 * carries. A server serves only bytes inside its registered regions, and each
 * access only after `authorize` has allowed it.
 *
 * Threads. A server runs threads of its own; its functions may be called from any
 * thread. An endpoint belongs to one thread at a time.
 */
#ifndef QMT_TRANSPORT_H
#define QMT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"

#define QMT_CAPABILITY_BYTES 16
#define QMT_ADDRESS_MAX      512  /**< bytes of an exported server address */
#define QMT_HANDLE_MAX       128  /**< bytes of an exported region handle */
#define QMT_OFFER_MAX        4096 /**< bytes of an offer or an answer */
#define QMT_DESCRIPTION_MAX  512  /**< of a server, terminator included */

enum qmt_access { QMT_READ = 1, QMT_WRITE = 2 };

/** One access a peer asks for, as the owner's authorize function sees it. */
struct qmt_access_request {
	enum qmt_access access;
	uint64_t region; /**< number given at registration */
	uint64_t offset;
	uint64_t length;
	uint8_t capability[QMT_CAPABILITY_BYTES];
};

/**
 * Owner's decision; called on a server thread, must not block. On QMLA_OK the
 * transport calls `finished` exactly once for it when the last byte was moved or
 * the connection was given up: until then the memory must not be reused. @p token
 * is what finished gets back.
 */
struct qmt_server_callbacks {
	void *user;
	qmla_status_t (*authorize)(void *user, const struct qmt_access_request *request,
				   uint64_t *token);
	void (*finished)(void *user, const struct qmt_access_request *request, uint64_t token,
			 qmla_status_t status);
};

struct qmt_server_config {
	const char *listen;    /**< tcp: "host:port" (port 0: any); shm: directory of the socket */
	const char *advertise; /**< tcp: host that peers shall use; NULL: the bound one */
	const char *devices;   /**< verbs: "name[:port[:gid]],…"; NULL: chosen */
	uint32_t threads;      /**< 0: default */
	uint32_t max_peers;    /**< 0: default; further connections are refused */
	int64_t idle_timeout_ns; /**< a peer that stalls inside a message this long is dropped; 0:
				    default */
	struct qmt_server_callbacks callbacks;
};

/** Memory that may be registered. */
struct qmt_memory {
	void *base;
	uint64_t bytes;
	int fd; /**< memfd behind base (offset 0), or -1; shm needs it */
};

struct qmt_server;
struct qmt_endpoint;

struct qmt_handle {
	uint8_t bytes[QMT_HANDLE_MAX];
	uint32_t length;
};

struct qmt_server_address {
	uint8_t bytes[QMT_ADDRESS_MAX];
	uint32_t length;
};

/** What two sides tell each other over the control plane before they are connected. */
struct qmt_offer {
	uint8_t bytes[QMT_OFFER_MAX];
	uint32_t length;
};

/**
 * One read or write. Caller's storage, untouched by the caller from post until
 * it comes back from wait. Local memory is any memory of the caller; back ends
 * that need registration find it among the endpoint's registered memory.
 */
struct qmt_op {
	enum qmt_access access;
	const struct qmt_handle *remote; /**< must live until completion */
	uint64_t remote_offset;
	void *local;
	uint64_t length;
	uint8_t capability[QMT_CAPABILITY_BYTES];
	qmc_time_t deadline;
	void *user;           /**< the caller's */
	qmla_status_t status; /**< out, valid once completed */
	/* The endpoint's while posted. */
	struct qmt_op *next_;
	uint64_t id_;
	uint64_t done_;
};

struct qmt_server_stats {
	uint64_t bytes_read; /**< by peers */
	uint64_t bytes_written;
	uint64_t reads, writes, denied;
	uint64_t peers;
};

/** Contract of a back end; the qmt_* functions below call these after checking arguments. */
struct qmt_transport_ops {
	const char *name;
	/**
	 * Reads do not pass through the server: `authorize` is asked for writes only, a
	 * fence stops no read, and the server learns of reads only what peers tell it.
	 * Whoever reads must judge by the lease and by what it has read.
	 */
	bool one_sided;
	/** NULL: always. False when this process can't use the back end here and now (no device).
	 * Any thread; may take milliseconds. */
	bool (*usable)(void);

	/** Starts listening and serving. QMLA_ERR_BUSY: address in use. */
	qmla_status_t (*server_create)(const struct qmt_server_config *config,
				       struct qmt_server **server);
	/** Stops, waits until every authorised access was finished. Accepts NULL. */
	void (*server_destroy)(struct qmt_server *server);
	/** What clients need to connect; the same for the server's whole life. */
	qmla_status_t (*server_address)(const struct qmt_server *server,
					struct qmt_server_address *address);
	/** Makes @p memory reachable; the memory stays the caller's and must outlive the server. */
	qmla_status_t (*server_register)(struct qmt_server *server, const struct qmt_memory *memory,
					 uint64_t region, struct qmt_handle *handle);
	/**
	 * Ends every access made with @p capability and refuses new ones; on return
	 * no byte moves under it any more (a fence for late writers) and finished was
	 * called for each. Blocks until the serving threads have noticed, which no
	 * peer can delay. Not to be called from authorize or finished, nor with a lock
	 * held that these take. authorize must refuse the capability for ever: the
	 * server remembers only the latest 16,384.
	 */
	qmla_status_t (*server_fence)(struct qmt_server *server,
				      const uint8_t capability[QMT_CAPABILITY_BYTES]);
	/** A snapshot of the counters. Any thread. */
	void (*server_stats)(const struct qmt_server *server, struct qmt_server_stats *stats);
	/**
	 * NULL: nothing to do. Ends every connection that reaches @p region, at once: on
	 * return none of them reads or writes it any more. For a region that changes its owner.
	 * May be called with the owner's locks held; blocks for system calls only.
	 */
	void (*server_revoke)(struct qmt_server *server, uint64_t region);
	/** NULL: nothing to say. One line about devices and memory, for an operator. */
	void (*server_describe)(const struct qmt_server *server, char text[QMT_DESCRIPTION_MAX]);

	/*
	 * Connecting over the control plane, for back ends without a listener of their own:
	 * these three, or endpoint_create; what is missing is NULL. The endpoint makes an
	 * offer, the server answers it, the endpoint completes the connection.
	 */

	/** An endpoint that is not connected yet: only complete and destroy may follow. */
	qmla_status_t (*endpoint_offer)(const struct qmt_server_address *address,
					struct qmt_endpoint **endpoint, struct qmt_offer *offer);
	/**
	 * Makes this side ready for the endpoint to use @p region and tells how. The same
	 * offer again gets the same answer. QMLA_ERR_RESOURCE_EXHAUSTED: max_peers;
	 * QMLA_ERR_PERMISSION: not made from this server's address;
	 * QMLA_ERR_PEER_RESTARTED: from that of another life; QMLA_ERR_UNSUPPORTED: nothing in
	 * common; QMLA_ERR_FORMAT; QMLA_ERR_NOT_FOUND: no such region. Any thread.
	 */
	qmla_status_t (*server_answer)(struct qmt_server *server, uint64_t region,
				       const struct qmt_offer *offer, struct qmt_offer *answer);
	/** Finishes within @p deadline; bytes have gone both ways on return. Blocks. */
	qmla_status_t (*endpoint_complete)(struct qmt_endpoint *endpoint,
					   const struct qmt_offer *answer, qmc_time_t deadline);

	/** Connects within @p deadline. Blocks. */
	qmla_status_t (*endpoint_create)(const struct qmt_server_address *address,
					 qmc_time_t deadline, struct qmt_endpoint **endpoint);
	/** Completes nothing: ops still posted are forgotten, their memory is no longer touched on
	 * return. Accepts NULL. */
	void (*endpoint_destroy)(struct qmt_endpoint *endpoint);
	/** Registers local memory for back ends that want it; a no-op elsewhere. */
	qmla_status_t (*endpoint_register)(struct qmt_endpoint *endpoint,
					   const struct qmt_memory *memory);
	/** Takes @p op; it comes back from wait exactly once. Never blocks. Fails only on a dead
	 * endpoint or bad argument, and then did not take it. */
	qmla_status_t (*endpoint_post)(struct qmt_endpoint *endpoint, struct qmt_op *op);
	/**
	 * Moves data until an op completes or @p deadline passes (QMLA_ERR_DEADLINE).
	 * @p completed gets one op; NULL when none is posted. An op past its own
	 * deadline completes with QMLA_ERR_DEADLINE; if its bytes were on the wire the
	 * endpoint dies with it, and all others complete with QMLA_ERR_UNAVAILABLE.
	 */
	qmla_status_t (*endpoint_wait)(struct qmt_endpoint *endpoint, qmc_time_t deadline,
				       struct qmt_op **completed);
	/** Asks for @p op to complete soon with QMLA_ERR_CANCELLED (or its real status when it was
	 * done). */
	void (*endpoint_cancel)(struct qmt_endpoint *endpoint, struct qmt_op *op);
	/** False once the connection failed: destroy it and make another. */
	bool (*endpoint_alive)(const struct qmt_endpoint *endpoint);
};

/** Finds a back end by name ("verbs", "shm", "tcp"); NULL when there is none in this build. */
const struct qmt_transport_ops *qmt_transport_find(const char *name);

/** The @p index-th back end in order of preference, NULL past the last. */
const struct qmt_transport_ops *qmt_transport_at(size_t index);

extern const struct qmt_transport_ops qmt_verbs_ops; /**< only in builds that have it */
extern const struct qmt_transport_ops qmt_tcp_ops;
extern const struct qmt_transport_ops qmt_shm_ops;

/**
 * Convenience for one thread: posts @p count ops, waits for all of them and
 * returns the first failure's status, or QMLA_OK; each op has its own status.
 */
qmla_status_t qmt_endpoint_run(const struct qmt_transport_ops *ops, struct qmt_endpoint *endpoint,
			       struct qmt_op *list, size_t count);

#endif /* QMT_TRANSPORT_H */
