/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Client's side of writes: a ring in a sealed memfd that the server copies from.
 * Spans are taken and released in order. One thread.
 */
#ifndef QMT_SHM_STAGING_H
#define QMT_SHM_STAGING_H

#include "transport/transport.h"

#define QMT_STAGING_BYTES (UINT64_C(8) << 20) /**< unless one write needs more */

struct qmt_staging {
	int fd;
	uint8_t *base;
	uint64_t bytes;
	uint64_t head, tail; /**< counting up; position is modulo bytes */
};

/** No memory yet; reserve makes it. */
void qmt_staging_init(struct qmt_staging *staging);

/** Unmaps and closes the memfd; the server's own mapping lives on. */
void qmt_staging_fini(struct qmt_staging *staging);

/**
 * Makes the ring large enough for one span of @p length bytes. @p fresh tells
 * that it is a new memfd, which the server has to be given. Allowed while no
 * span is taken, or when it is large enough already.
 */
qmla_status_t qmt_staging_reserve(struct qmt_staging *staging, uint64_t length, bool *fresh);

/**
 * Takes a contiguous span. False while there is no room. @p cost is what to
 * release later: the span and what was skipped before it.
 */
bool qmt_staging_take(struct qmt_staging *staging, uint64_t length, uint64_t *offset,
		      uint64_t *cost);

/** Gives back the oldest span. */
void qmt_staging_release(struct qmt_staging *staging, uint64_t cost);

#endif /* QMT_SHM_STAGING_H */
