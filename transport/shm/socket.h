/* SPDX-License-Identifier: Apache-2.0 */
/** @file Unix sockets of the shm back end: where they lie, how stale ones go away. */
#ifndef QMT_SHM_SOCKET_H
#define QMT_SHM_SOCKET_H

#include "transport/blob.h"

/**
 * Listens on a fresh socket in @p directory, which is made (0700) when it is
 * missing; sockets there whose server is dead are removed. @p fd is
 * non-blocking and the caller's; @p path must be unlinked by it. Logs.
 * QMLA_ERR_INVALID_ARGUMENT: no directory, or too long for a socket's path.
 */
qmla_status_t qmt_shm_socket_listen(const char *directory, int *fd,
				    char path[QMT_ADDRESS_TEXT_MAX]);

/** Connects within @p deadline. Blocks. @p fd is non-blocking and the caller's. */
qmla_status_t qmt_shm_socket_connect(const char *path, qmc_time_t deadline, int *fd);

#endif /* QMT_SHM_SOCKET_H */
