/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_listen.h"

#include <netdb.h>
#include <unistd.h>

static qmla_status_t probe_one(const struct qmc_address *address)
{
	uint16_t port;
	int fd;
	qmla_status_t status = qmc_tcp_listen(address, &fd, &port);

	if (status == QMLA_OK)
		close(fd);
	return status;
}

static qmla_status_t probe_resolved(const struct addrinfo *entry, uint16_t port)
{
	char text[QMC_ADDRESS_TEXT_MAX];
	struct qmc_address numeric;

	qmc_sockaddr_format(entry->ai_addr, entry->ai_addrlen, text);
	if (qmc_address_parse(text, &numeric) != QMLA_OK)
		return QMLA_ERR_UNAVAILABLE;
	numeric.port = port;
	return probe_one(&numeric);
}

qmla_status_t qmp_listen_probe(const struct qmc_address *address)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *list;
	qmla_status_t status = QMLA_ERR_UNAVAILABLE;

	if (!address->host[0])
		return probe_one(address);
	if (getaddrinfo(address->host, NULL, &hints, &list))
		return QMLA_ERR_NOT_FOUND;
	for (const struct addrinfo *entry = list; entry; entry = entry->ai_next) {
		qmla_status_t one = probe_resolved(entry, address->port);

		/* A name often has an IPv6 address where the machine has none: one that
		 * works is enough, but none may be somebody else's. */
		if (one == QMLA_OK || status != QMLA_OK)
			status = one;
		if (one == QMLA_ERR_BUSY || one == QMLA_ERR_PERMISSION) {
			status = one;
			break;
		}
	}
	freeaddrinfo(list);
	return status;
}
