/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A verbs endpoint's insides, for the files that make it up: endpoint.c (life, waiting),
 * handshake.c (offer and complete), issue.c (operations out), post.c (work requests), complete.c
 * (completions and messages in), bounce.c (memory that is not registered). One thread.
 *
 * Work requests of a rail complete in order, so they are a ring, and only some are
 * signalled: a completion retires all up to its own.
 */
#ifndef QMT_VERBS_ENDPOINT_INTERNAL_H
#define QMT_VERBS_ENDPOINT_INTERNAL_H

#include "transport/queue.h"
#include "transport/verbs/domain.h"
#include "transport/verbs/mail.h"
#include "transport/verbs/monitor.h"

#define QMT_RING         256 /**< work requests of a rail on the wire */
#define QMT_BATCH        32  /**< posted in one call */
#define QMT_AREAS_MAX    64
#define QMT_BOUNCES      16
#define QMT_BOUNCE_BYTES (UINT32_C(256) << 10)
#define QMT_NO_BOUNCE    (-1)
#define QMT_WRITES_MAX   16 /**< under way on a rail; a server may allow more */
#define QMT_RECEIVES     (QMT_WRITES_MAX * 2 + 8)

enum qmt_segment_kind { SEGMENT_MESSAGE, SEGMENT_READ, SEGMENT_WRITE, SEGMENT_PROBE };

/** One work request on the wire. */
struct qmt_segment {
	enum qmt_segment_kind kind;
	uint64_t op; /**< place in the queue, counting up */
	uint8_t *local;
	uint32_t bytes;
	int bounce;
};

struct qmt_verbs_rail {
	struct qmt_watched watched; /**< first: the QP's and CQ's user pointer */
	size_t port;                /**< index in the domain */
	bool used, up, broken;
	struct qmt_qp qp;
	struct qmt_mail mail;
	uint32_t rkeys[QMT_CHUNKS_MAX];
	uint32_t read_limit, reads;
	uint32_t writes;
	uint64_t bytes; /**< on the wire */
	struct qmt_segment ring[QMT_RING];
	uint64_t head, tail; /**< of the ring; counting up */
	uint32_t unsignalled;
	uint64_t unsignalled_bytes;
	struct ibv_send_wr wrs[QMT_BATCH];
	struct ibv_sge sges[QMT_BATCH];
	size_t batched;
	uint64_t batched_bytes;
};

enum qmt_stage {
	STAGE_NEW,
	STAGE_READING,
	STAGE_ASKED,     /**< for a window */
	STAGE_WRITING,   /**< through the window */
	STAGE_FINISHING, /**< written; the server's reply is to come */
	STAGE_PULLING,   /**< the server fetches it piece by piece */
	STAGE_DONE,
};

/** What the queue does not know about an operation on the wire; same ring index. */
struct qmt_verbs_extra {
	enum qmt_stage stage;
	uint64_t issued;   /**< bytes */
	uint32_t segments; /**< on the wire, or pieces being fetched */
	size_t rail;       /**< of a write */
	bool replied;
	uint32_t rkeys[QMT_WINDOWS_MAX];
	qmla_status_t status;
};

/** Pinned memory through which bytes go whose own memory is not registered. */
struct qmt_bounce {
	uint8_t *memory; /**< NULL: not made yet */
	struct ibv_mr *mrs[QMT_RAILS_MAX];
	bool taken[QMT_BOUNCES];
};

struct qmt_verbs_endpoint {
	struct qmt_domain *domain;
	struct qmt_identity server;
	uint8_t connection[QMT_CONNECTION_BYTES];
	struct qmt_verbs_rail rails[QMT_RAILS_MAX];
	struct qmt_verbs_answer answer;
	bool connected, alive;
	int wake_fd;
	struct qmt_queue queue;
	struct qmt_verbs_extra extras[QMT_WINDOW_OPS];
	struct qmt_area *areas[QMT_AREAS_MAX];
	size_t area_count;
	struct qmt_bounce bounce;
	uint64_t reads_done, bytes_done; /**< not reported yet */
	qmc_time_t reported;
	bool reporting;
	unsigned idle_spins; /**< since the last that found something */
	qmc_time_t heard;    /**< when something last completed or a probe was sent */
	size_t writing;      /**< writes on the wire */
	size_t waiting;      /**< operations posted since something was last issued */
	uint64_t waiting_bytes;
};

static inline struct qmt_verbs_endpoint *qmt_verbs_of(struct qmt_endpoint *endpoint)
{
	return (struct qmt_verbs_endpoint *)endpoint;
}

/** The operation at place @p index of the queue, which must be on the wire. */
static inline struct qmt_wire_op *qmt_verbs_wire(struct qmt_verbs_endpoint *endpoint,
						 uint64_t index)
{
	return &endpoint->queue.wire[index % QMT_WINDOW_OPS];
}

static inline struct qmt_verbs_extra *qmt_verbs_extra(struct qmt_verbs_endpoint *endpoint,
						      uint64_t index)
{
	return &endpoint->extras[index % QMT_WINDOW_OPS];
}

/** Ends the endpoint and every op of it, once; logs @p why. */
void qmt_verbs_die(struct qmt_verbs_endpoint *endpoint, const char *why);

/** True when the rail's ring takes another work request. */
static inline bool qmt_verbs_has_room(const struct qmt_verbs_rail *rail)
{
	return rail->tail - rail->head < QMT_RING;
}

/** Adds a work request to the batch, for the caller to complete; there must be room. */
struct ibv_send_wr *qmt_verbs_add(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
				  const struct qmt_segment *segment, struct ibv_sge sge);

/** Sends @p message on @p rail. False: no room now. */
bool qmt_verbs_tell(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail,
		    const struct qmt_message *message);

/** Sends nothing at all on @p rail, which the server's device confirms if it is there. */
void qmt_verbs_probe(struct qmt_verbs_endpoint *endpoint, struct qmt_verbs_rail *rail);

/** Posts what was collected. */
void qmt_verbs_flush(struct qmt_verbs_endpoint *endpoint);

/** Starts what the windows allow and posts it. */
void qmt_verbs_issue(struct qmt_verbs_endpoint *endpoint);

/** Takes completions and messages in; false when there were none. */
bool qmt_verbs_poll(struct qmt_verbs_endpoint *endpoint);

/** The operation at @p index has ended; completes what is due, in order. */
void qmt_verbs_finish(struct qmt_verbs_endpoint *endpoint, uint64_t index, qmla_status_t status);

/** Posts the receives of a new rail. */
qmla_status_t qmt_verbs_listen(struct qmt_verbs_rail *rail);

/* bounce.c */

/** Takes a buffer; QMT_NO_BOUNCE when none is free or none can be had. */
int qmt_bounce_take(struct qmt_verbs_endpoint *endpoint);
void qmt_bounce_give(struct qmt_verbs_endpoint *endpoint, int bounce);
uint8_t *qmt_bounce_memory(const struct qmt_verbs_endpoint *endpoint, int bounce);
/** Copies between a buffer and an operation's memory, which may be a GPU's. */
bool qmt_bounce_copy(const struct qmt_verbs_endpoint *endpoint, void *to, const void *from,
		     size_t bytes);
/** Ends it; no queue pair may be left. */
void qmt_bounce_fini(struct qmt_verbs_endpoint *endpoint);

#endif /* QMT_VERBS_ENDPOINT_INTERNAL_H */
