/* SPDX-License-Identifier: Apache-2.0 */
/** @file Whether the other side still holds a connection up. */
#ifndef QMT_LIVENESS_H
#define QMT_LIVENESS_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>

/** False when the peer of the stream @p fd has shut it down or is gone. Does not block. */
static inline bool qmt_socket_is_open(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLRDHUP};
	int n;

	/* A pending signal interrupts even a poll that does not wait. */
	do {
		n = poll(&pfd, 1, 0);
	} while (n < 0 && errno == EINTR);
	return n == 0;
}

#endif /* QMT_LIVENESS_H */
