/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * /healthz (the process lives), /readyz (it takes calls) and /metrics over HTTP,
 * for probes and Prometheus. GET and HEAD only, no state.
 */
#ifndef QMS_HTTP_H
#define QMS_HTTP_H

#include <stdint.h>

#include <qmla/status.h>

struct qms_http;
struct qms_service;

/** Listens at @p listen ("host:port") and serves from a thread of its own. QMLA_ERR_BUSY: in use.
 * Logged. */
qmla_status_t qms_http_create(const char *listen, struct qms_service *service,
			      struct qms_http **http);
void qms_http_destroy(struct qms_http *http); /**< accepts NULL */
uint16_t qms_http_port(const struct qms_http *http);

#endif /* QMS_HTTP_H */
