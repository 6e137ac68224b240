/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The small HTTP side door of a process (libmicrohttpd): GET or HEAD of
 *   /healthz  200 while the process lives
 *   /readyz   200 when it takes work, else 503
 *   /metrics  Prometheus text
 * One thread of its own; at most 64 connections, each dropped when idle for 10 s. Without
 * descriptors for another one it waits and goes on.
 */
#ifndef QMC_HTTP_ENDPOINT_H
#define QMC_HTTP_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <qmla/status.h>

struct qmc_http_endpoint;

struct qmc_http_endpoint_config {
	const char *listen; /**< "host:port", port 0: chosen */
	bool (*ready)(void *user);
	void (*metrics)(void *user,
			FILE *out); /**< writes the text; called on the endpoint's thread */
	void *user;
};

/** Binds and serves. QMLA_ERR_BUSY: the address is in use; QMLA_ERR_FORMAT (both logged). */
qmla_status_t qmc_http_endpoint_create(const struct qmc_http_endpoint_config *config,
				       struct qmc_http_endpoint **endpoint);

/** The port really bound. */
uint16_t qmc_http_endpoint_port(const struct qmc_http_endpoint *endpoint);

/** Ends connections, joins the thread, frees. Accepts NULL. */
void qmc_http_endpoint_destroy(struct qmc_http_endpoint *endpoint);

#endif /* QMC_HTTP_ENDPOINT_H */
