/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The project's status as gRPC's code and as the trailing metadata "qmla-status",
 * and back. docs/api.md prints the table. Internal to proto/.
 */
#ifndef QMP_RPC_STATUS_H
#define QMP_RPC_STATUS_H

#include <grpc/grpc.h>
#include <stdbool.h>

#include <qmla/status.h>

#define QMP_STATUS_KEY "qmla-status"

/** The code that a caller without our client sees. Any thread. */
grpc_status_code qmp_grpc_code_from_status(qmla_status_t status);

/**
 * What a finished call means: the peer's own status when @p trailing has a known
 * one, else by the code. @p cancelled_here tells our cancellation from the peer's.
 */
qmla_status_t qmp_status_from_grpc(grpc_status_code code, grpc_slice details,
				   const grpc_metadata_array *trailing, bool cancelled_here);

#endif /* QMP_RPC_STATUS_H */
