/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The decode worker's half of qmla.v1.Worker: Generate. Each call is served on a
 * thread of the RPC server from its prefix to its last token; the model thread
 * does the computing.
 */
#ifndef QMW_DECODE_SERVICE_H
#define QMW_DECODE_SERVICE_H

#include "proto/rpc_server.h"

/** Handler of /qmla.v1.Worker/Generate; @p service is a struct qmw_worker. */
void qmw_decode_generate(void *service, struct qmp_call *call, const ProtobufCMessage *request);

#endif /* QMW_DECODE_SERVICE_H */
