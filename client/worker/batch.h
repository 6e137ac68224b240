/* SPDX-License-Identifier: Apache-2.0 */
/** @file The publisher's side of a batch (publisher.h): counting its blocks in and out. Any thread.
 */
#ifndef QMW_BATCH_H
#define QMW_BATCH_H

#include <qmla/status.h>

struct qmw_batch;

/** A block of it was queued: one reference and one pending more. */
void qmw_batch_enter(struct qmw_batch *batch);

/** A queued block was settled; gives the reference back. */
void qmw_batch_leave(struct qmw_batch *batch, qmla_status_t status);

/** A block that could not even be queued. */
void qmw_batch_refused(struct qmw_batch *batch, qmla_status_t status);

/** QMLA_OK, or why a settled block is missing: nobody would find those that are queued. */
qmla_status_t qmw_batch_failed(struct qmw_batch *batch);

/** QMLA_OK, or why a block is missing, settled or refused: nobody would find the next one. */
qmla_status_t qmw_batch_broken(struct qmw_batch *batch);

#endif /* QMW_BATCH_H */
