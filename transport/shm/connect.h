/* SPDX-License-Identifier: Apache-2.0 */
/** @file Brings a shm connection up to where requests may be sent. */
#ifndef QMT_SHM_CONNECT_H
#define QMT_SHM_CONNECT_H

#include "transport/blob.h"

/**
 * Connects to the server @p identity at the socket @p path and shakes hands
 * within @p deadline. Blocks. @p fd is non-blocking and the caller's;
 * @p max_length is the largest operation. Any thread. Statuses: the server's
 * refusal, QMLA_ERR_UNAVAILABLE, QMLA_ERR_DEADLINE, QMLA_ERR_FORMAT.
 */
qmla_status_t qmt_shm_connect(const struct qmt_identity *identity, const char *path,
			      qmc_time_t deadline, int *fd, uint64_t *max_length);

#endif /* QMT_SHM_CONNECT_H */
