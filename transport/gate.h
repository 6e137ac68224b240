/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What a server lets its peers reach: the registered regions, the accesses in
 * flight and the fence. Every back end's server asks the gate before it moves a
 * byte and tells it when the last one moved; the gate calls the owner's
 * `authorize` and `finished`, the latter exactly once for each access allowed.
 *
 * Threads. Every function may be called from any thread. The owner's callbacks
 * run with no lock of the gate held.
 */
#ifndef QMT_GATE_H
#define QMT_GATE_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "transport/transport.h"

struct qmt_gate;

/** One access in flight. Storage of the connection that serves it. */
struct qmt_flight {
	struct qmt_access_request request; /**< set by the caller before begin */
	uint8_t *memory;                   /**< out: first byte of the access */
	const struct qmt_memory *region;   /**< out: the whole region */
	int wake_fd;                       /**< eventfd that a fence writes to; set by the caller */
	/**
	 * Set by a fence: move no further byte and end the access. Read with
	 * qmt_flight_is_fenced between two pieces.
	 */
	atomic_bool fenced;
	uint64_t token; /**< the owner's */
	LIST_ENTRY(qmt_flight) link;
};

/** True when a fence asked for the end of @p flight. */
static inline bool qmt_flight_is_fenced(struct qmt_flight *flight)
{
	/* Pairs with the release in qmt_gate_fence. */
	return atomic_load_explicit(&flight->fenced, memory_order_acquire);
}

/** @p callbacks is copied. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmt_gate_create(const struct qmt_server_callbacks *callbacks, struct qmt_gate **gate);

/** No access may be in flight. Accepts NULL. */
void qmt_gate_destroy(struct qmt_gate *gate);

/**
 * Makes @p memory reachable as @p region. Logs what is wrong.
 * QMLA_ERR_INVALID_ARGUMENT, QMLA_ERR_ALREADY_EXISTS (the number), QMLA_ERR_NO_MEMORY.
 */
qmla_status_t qmt_gate_register(struct qmt_gate *gate, const struct qmt_memory *memory,
				uint64_t region);

/**
 * Decides on flight->request. On QMLA_OK the flight is in the gate's list until
 * qmt_gate_end. QMLA_ERR_NOT_FOUND: no such region; QMLA_ERR_INVALID_ARGUMENT:
 * outside of it; QMLA_ERR_PERMISSION: fenced; else what authorize said.
 */
qmla_status_t qmt_gate_begin(struct qmt_gate *gate, struct qmt_flight *flight);

/** Ends an access that begin allowed; @p moved bytes went through. Calls `finished`. */
void qmt_gate_end(struct qmt_gate *gate, struct qmt_flight *flight, qmla_status_t status,
		  uint64_t moved);

/**
 * Refuses @p capability from now on and waits until none of its accesses is in
 * flight. Blocks for as long as the serving threads need to notice (no peer can
 * delay it). Must not be called from authorize or finished, nor with a lock
 * held that these take. The last QMT_FENCES_MAX fenced capabilities
 * are remembered; the owner's authorize must refuse them for ever.
 */
void qmt_gate_fence(struct qmt_gate *gate, const uint8_t capability[QMT_CAPABILITY_BYTES]);

/** Everything but `peers`, which is left alone. */
void qmt_gate_stats(struct qmt_gate *gate, struct qmt_server_stats *stats);

#endif /* QMT_GATE_H */
