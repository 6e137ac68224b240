/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Network addresses as text: "host:port", "[v6]:port", "port" (all interfaces).
 * IPv6 and IPv4 alike everywhere.
 */
#ifndef QMC_ADDRESS_H
#define QMC_ADDRESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <qmla/status.h>

#define QMC_HOST_MAX         256
#define QMC_ADDRESS_TEXT_MAX (QMC_HOST_MAX + 16)

struct qmc_address {
	char host[QMC_HOST_MAX]; /**< name or numeric address, without brackets; "" is any */
	uint16_t port;           /**< 0: let the kernel choose (listening only) */
};

/** Splits text into host and port. QMLA_ERR_FORMAT names nothing: the caller logs it. */
qmla_status_t qmc_address_parse(const char *text, struct qmc_address *address);

/** Writes "host:port", brackets around IPv6; an empty host becomes "[::]". */
void qmc_address_format(const struct qmc_address *address, char text[QMC_ADDRESS_TEXT_MAX]);

/** Numeric text of a socket address ("127.0.0.1:80", "[::1]:80", "unix"). */
void qmc_sockaddr_format(const struct sockaddr *sa, socklen_t length,
			 char text[QMC_ADDRESS_TEXT_MAX]);

/**
 * Resolves and binds a listening TCP socket (SO_REUSEADDR, no SO_REUSEPORT;
 * dual-stack when the host is empty). @p fd is non-blocking and close-on-exec,
 * owned by the caller; @p bound_port receives the real port. QMLA_ERR_BUSY: in use.
 */
qmla_status_t qmc_tcp_listen(const struct qmc_address *address, int *fd, uint16_t *bound_port);

/** Why listening failed and what to do, for an operator: text of a status of qmc_tcp_listen. */
const char *qmc_listen_reason(qmla_status_t status);

/**
 * Connects within @p deadline (qmc_time_t), trying each resolved address.
 * Blocks. @p fd is non-blocking with TCP_NODELAY, owned by the caller.
 */
qmla_status_t qmc_tcp_connect(const struct qmc_address *address, int64_t deadline, int *fd);

#endif /* QMC_ADDRESS_H */
