/* SPDX-License-Identifier: Apache-2.0 */
/** @file The publisher's side of a batch (publisher.h): counting its blocks in and out. Any thread.
 */
#ifndef QMW_BATCH_H
#define QMW_BATCH_H

#include <qmla/status.h>

struct qmw_batch;

/** A block of it was queued: one reference and one pending more. NULL: nothing. */
void qmw_batch_enter(struct qmw_batch *batch);

/** A queued block was settled; gives the reference back. NULL: nothing. */
void qmw_batch_leave(struct qmw_batch *batch, qmla_status_t status);

/** A block that could not even be queued. NULL: nothing. */
void qmw_batch_refused(struct qmw_batch *batch, qmla_status_t status);

#endif /* QMW_BATCH_H */
