/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Inside of a window: its copies, grouped into batches of one node each, and the
 * steps that window.c puts in order. Used by one thread.
 */
#ifndef QML_WORK_H
#define QML_WORK_H

#include <stdbool.h>

#include "client/cache/calls.h"
#include "client/cache/window.h"
#include "transport/transport.h"

/** One copy of one block on one node. */
struct qml_copy {
	size_t index; /* into the call's arrays */
	struct qml_node *node;
	qmla_status_t status;
	uint64_t ticket; /* held while `reserved` */
	bool reserved;
	uint64_t incarnation;
	uint64_t offset;
	uint64_t generation;
	qmc_time_t expires;
	uint8_t capability[QMT_CAPABILITY_BYTES];
};

/** The copies of one node, at most a batch: what one call carries. */
struct qml_batch {
	struct qml_copy **copies;
	size_t count;
	struct qml_link *link; /* held; NULL: could not connect */
	union {
		Qmla__V1__ReserveRequest reserve;
		Qmla__V1__CommitRequest commit;
		Qmla__V1__AbortRequest abort;
	} request;
};

struct qml_work {
	struct qml_window *window;
	struct qml_copy *copies; /* in rising order of index */
	size_t copy_count;
	struct qml_copy **order; /* [copy_count], grouped by node */
	struct qml_batch *batches;
	size_t batch_count;
	struct qml_call *calls; /* [copy_count] */
	uint8_t *headers;       /* [copy_count][header_bytes] */
	void *scratch;          /* [copy_count], of a request's repeated field */
	void **pointers;        /* [copy_count] */
};

union qml_scratch {
	ProtobufCBinaryData key;
	Qmla__V1__CommitItem item;
	uint64_t ticket;
};

/** Asks every node for its slots; copies get their status and, when it is QMLA_OK, a ticket. */
void qml_work_reserve(struct qml_work *work);

/** Writes the copies whose status is QMLA_OK. QMLA_ERR_NO_MEMORY; else statuses say how it went. */
qmla_status_t qml_work_write(struct qml_work *work);

/** Commits what is written of the blocks before @p end. */
void qml_work_commit(struct qml_work *work, size_t end);

/** Gives back the tickets that led to nothing, without waiting. */
void qml_work_abort(struct qml_work *work);

#endif /* QML_WORK_H */
