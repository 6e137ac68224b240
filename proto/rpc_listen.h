/* SPDX-License-Identifier: Apache-2.0 */
/** @file Whether and why not a server can listen on an address. Internal to proto/. */
#ifndef QMP_RPC_LISTEN_H
#define QMP_RPC_LISTEN_H

#include <qmla/status.h>

#include "common/address.h"

/**
 * Tries to listen on every address that @p address means, one after the other.
 * gRPC is content when one of them is free, so a second server on
 * "localhost:7000" would share the name with the first in silence; and when none
 * is, it does not say why. QMLA_ERR_BUSY: one is taken; QMLA_ERR_PERMISSION;
 * QMLA_ERR_NOT_FOUND: no such name; QMLA_ERR_UNAVAILABLE: not an address of this
 * machine. Blocks for the name's resolution. Logs nothing.
 */
qmla_status_t qmp_listen_probe(const struct qmc_address *address);

#endif /* QMP_RPC_LISTEN_H */
