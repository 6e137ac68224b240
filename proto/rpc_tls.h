/* SPDX-License-Identifier: Apache-2.0 */
/** @file Credentials of servers and channels: plain text or mutual TLS. Internal to proto/. */
#ifndef QMP_RPC_TLS_H
#define QMP_RPC_TLS_H

#include <grpc/grpc_security.h>

#include <qmla/status.h>

#include "proto/rpc_server.h"

/**
 * Credentials of a server that asks for and verifies a client certificate; plain
 * text when @p tls is NULL. Files are read now; what is wrong with one is logged
 * with its name. Released with grpc_server_credentials_release.
 */
qmla_status_t qmp_server_credentials_create(const struct qmp_tls *tls,
					    grpc_server_credentials **credentials);

/** The same for a channel; released with grpc_channel_credentials_release. */
qmla_status_t qmp_channel_credentials_create(const struct qmp_tls *tls,
					     grpc_channel_credentials **credentials);

#endif /* QMP_RPC_TLS_H */
