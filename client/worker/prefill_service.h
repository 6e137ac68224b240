/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The prefill worker's half of qmla.v1.Worker: Prefill. Finds what is cached of a
 * prompt, computes the rest in chunks, and publishes each full block while later
 * ones are computed; answers when the last one is out.
 */
#ifndef QMW_PREFILL_SERVICE_H
#define QMW_PREFILL_SERVICE_H

#include "proto/rpc_server.h"

/** Handler of /qmla.v1.Worker/Prefill; @p service is a struct qmw_worker. */
void qmw_prefill_prefill(void *service, struct qmp_call *call, const ProtobufCMessage *request);

#endif /* QMW_PREFILL_SERVICE_H */
