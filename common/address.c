/* SPDX-License-Identifier: Apache-2.0 */
#include "common/address.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/status.h"

static qmla_status_t parse_port(const char *text, uint16_t *port)
{
	char *end;
	unsigned long value;

	if (text[0] < '0' || text[0] > '9')
		return QMLA_ERR_FORMAT;
	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || *end || value > UINT16_MAX)
		return QMLA_ERR_FORMAT;
	*port = (uint16_t)value;
	return QMLA_OK;
}

static qmla_status_t copy_host(const char *begin, size_t length, struct qmc_address *address)
{
	if (length >= QMC_HOST_MAX)
		return QMLA_ERR_FORMAT;
	memcpy(address->host, begin, length);
	address->host[length] = '\0';
	return QMLA_OK;
}

qmla_status_t qmc_address_parse(const char *text, struct qmc_address *address)
{
	struct qmc_address parsed = {0};
	const char *colon = strrchr(text, ':');
	const char *close = strchr(text, ']');
	qmla_status_t status;

	if (!colon) {
		status = parse_port(text, &parsed.port);
	} else if (text[0] == '[') {
		if (!close || close + 1 != colon)
			return QMLA_ERR_FORMAT;
		status = copy_host(text + 1, (size_t)(close - text - 1), &parsed);
	} else {
		/* A bare IPv6 address has no port and several colons. */
		if (strchr(text, ':') != colon)
			return QMLA_ERR_FORMAT;
		status = copy_host(text, (size_t)(colon - text), &parsed);
	}
	if (status == QMLA_OK && colon)
		status = parse_port(colon + 1, &parsed.port);
	if (status == QMLA_OK)
		*address = parsed;
	return status;
}

void qmc_address_format(const struct qmc_address *address, char text[QMC_ADDRESS_TEXT_MAX])
{
	const char *host = address->host[0] ? address->host : "::";
	const char *form = strchr(host, ':') ? "[%s]:%u" : "%s:%u";

	snprintf(text, QMC_ADDRESS_TEXT_MAX, form, host, address->port);
}

void qmc_sockaddr_format(const struct sockaddr *sa, socklen_t length,
			 char text[QMC_ADDRESS_TEXT_MAX])
{
	char host[NI_MAXHOST];
	char port[NI_MAXSERV];

	if (sa->sa_family == AF_UNIX) {
		snprintf(text, QMC_ADDRESS_TEXT_MAX, "unix");
		return;
	}
	if (getnameinfo(sa, length, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV)) {
		snprintf(text, QMC_ADDRESS_TEXT_MAX, "unknown");
		return;
	}
	snprintf(text, QMC_ADDRESS_TEXT_MAX,
		 sa->sa_family == AF_INET6 ? "[%.240s]:%.8s" : "%.240s:%.8s", host, port);
}

static qmla_status_t resolve(const struct qmc_address *address, int flags, struct addrinfo **list)
{
	struct addrinfo hints = {
		.ai_family = address->host[0] ? AF_UNSPEC : AF_INET6,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = flags | AI_NUMERICSERV,
	};
	char port[8];
	int rc;

	snprintf(port, sizeof(port), "%u", address->port);
	rc = getaddrinfo(address->host[0] ? address->host : NULL, port, &hints, list);
	if (rc == 0)
		return QMLA_OK;
	if (rc == EAI_MEMORY)
		return QMLA_ERR_NO_MEMORY;
	return rc == EAI_AGAIN ? QMLA_ERR_UNAVAILABLE : QMLA_ERR_NOT_FOUND;
}

static qmla_status_t listen_on(const struct addrinfo *ai, bool any, int *out)
{
	const int on = 1;
	const int off = 0;
	int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int error;

	if (fd < 0)
		return qmc_status_from_errno(errno);
	if (ai->ai_family == AF_INET6 && any)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
	    bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
		*out = fd;
		return QMLA_OK;
	}
	error = errno;
	close(fd);
	return qmc_status_from_errno(error);
}

static uint16_t port_of(int fd)
{
	struct sockaddr_storage sa;
	socklen_t length = sizeof(sa);

	if (getsockname(fd, (struct sockaddr *)&sa, &length))
		return 0;
	if (sa.ss_family == AF_INET6)
		return ntohs(((struct sockaddr_in6 *)&sa)->sin6_port);
	return ntohs(((struct sockaddr_in *)&sa)->sin_port);
}

qmla_status_t qmc_tcp_listen(const struct qmc_address *address, int *fd, uint16_t *bound_port)
{
	bool any = !address->host[0];
	struct qmc_address v4 = {.host = "0.0.0.0", .port = address->port};
	struct addrinfo *list = NULL;
	qmla_status_t status = resolve(address, AI_PASSIVE, &list);

	if (status == QMLA_OK) {
		status = listen_on(list, any, fd);
		freeaddrinfo(list);
	}
	/* A host without IPv6 still listens on every IPv4 interface. */
	if (any && status != QMLA_OK && status != QMLA_ERR_BUSY && status != QMLA_ERR_PERMISSION)
		return qmc_tcp_listen(&v4, fd, bound_port);
	if (status == QMLA_OK)
		*bound_port = port_of(*fd);
	return status;
}

const char *qmc_listen_reason(qmla_status_t status)
{
	switch (status) {
	case QMLA_ERR_BUSY:
		return "the address is in use; stop the other process or choose another port";
	case QMLA_ERR_UNAVAILABLE:
		return "it is not an address of this machine; choose one that 'ip address' lists, "
		       "or [::] for all";
	case QMLA_ERR_NOT_FOUND:
		return "there is no such host name";
	case QMLA_ERR_PERMISSION:
		return "the port needs privileges; choose one from 1024 on";
	default:
		return qmla_status_text(status);
	}
}

static qmla_status_t await_connected(int fd, qmc_time_t deadline)
{
	struct pollfd pfd = {.fd = fd, .events = POLLOUT};
	socklen_t length = sizeof(int);
	int error = 0;
	int rc;

	do {
		rc = poll(&pfd, 1, qmc_clock_left_ms(deadline));
	} while (rc < 0 && errno == EINTR);
	if (rc == 0)
		return QMLA_ERR_DEADLINE;
	if (rc < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
		return qmc_status_from_errno(errno);
	return qmc_status_from_errno(error);
}

static qmla_status_t connect_to(const struct addrinfo *ai, qmc_time_t deadline, int *out)
{
	const int on = 1;
	qmla_status_t status = QMLA_OK;
	int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return qmc_status_from_errno(errno);
	if (connect(fd, ai->ai_addr, ai->ai_addrlen) < 0)
		status = errno == EINPROGRESS ? await_connected(fd, deadline)
					      : qmc_status_from_errno(errno);
	if (status == QMLA_OK && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
		status = qmc_status_from_errno(errno);
	if (status != QMLA_OK) {
		close(fd);
		return status;
	}
	*out = fd;
	return QMLA_OK;
}

qmla_status_t qmc_tcp_connect(const struct qmc_address *address, int64_t deadline, int *fd)
{
	struct addrinfo *list = NULL;
	qmla_status_t status = resolve(address, 0, &list);

	if (status != QMLA_OK)
		return status;
	status = QMLA_ERR_UNAVAILABLE;
	for (const struct addrinfo *ai = list; ai; ai = ai->ai_next) {
		status = connect_to(ai, deadline, fd);
		if (status == QMLA_OK || status == QMLA_ERR_DEADLINE)
			break;
	}
	freeaddrinfo(list);
	return status;
}
