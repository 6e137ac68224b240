/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Moves many pieces between the caller's memory and one node's pool. Several
 * lanes, each with a connection of its own and on a thread of its own, take the
 * pieces in order; a piece that has arrived is verified by its lane while the
 * other pieces are under way, so transfer and verification overlap.
 *
 * Time. A lane that sees no piece complete for the client's call timeout gives
 * the node up. A connection that breaks is made again as long as pieces get
 * through. Leases are renewed while their pieces move.
 */
#ifndef QML_TRANSFER_H
#define QML_TRANSFER_H

#include <stdatomic.h>
#include <stdint.h>

#include "client/cache/crew.h"
#include "client/cache/lease.h"
#include "client/cache/node.h"

struct qml_piece {
	size_t index; /**< of the block in the caller's arrays */
	uint64_t offset;
	uint64_t length;
	void *local;
	const uint8_t *capability;
	struct qml_lease *lease; /**< read: must cover the moment of arrival */
	qmc_time_t expires;      /**< write: end of the ticket */
	qmla_status_t status;    /**< out; QMLA_ERR_CANCELLED: left out, see stop */
};

/** Judges a piece that was read; called by several lanes at once. */
typedef qmla_status_t (*qml_transfer_landed_func_t)(void *user, const struct qml_piece *piece);

struct qml_transfer {
	struct qml_node *node;
	enum qmt_access access;
	uint64_t incarnation;     /**< of the node, when the offsets were given */
	struct qml_piece *pieces; /**< in rising order of index */
	size_t count;
	qmc_time_t deadline;
	qml_transfer_landed_func_t landed; /**< NULL: nothing to judge */
	void *user;
	/** Shared: pieces with a greater index are not started; lowered to that of a failed one. */
	_Atomic size_t *stop;

	size_t lanes_;
	_Atomic size_t next_;
	_Atomic int failure_; /* qmla_status_t of a lane that gave up */
};

/** Runs all of them, each with as many lanes as its size is worth. Blocks until none moves. */
void qml_transfers_run(struct qml_crew *crew, struct qml_transfer *transfers, size_t count);

#endif /* QML_TRANSFER_H */
