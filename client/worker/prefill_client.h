/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A decode worker's way to its prefill worker. One that fails is left out at
 * once, and a thread in the background asks for its health until it is well
 * again: a request never pays twice for the same dead peer.
 *
 * Threads: any, all functions.
 */
#ifndef QMW_PREFILL_CLIENT_H
#define QMW_PREFILL_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>
#include <qmla/status.h>

#include "common/clock.h"
#include "proto/rpc_client.h"

struct qmw_prefill_client;
struct qmw_prefill_call; /**< one running call; one thread */

/** Does not connect yet. @p tls: NULL: plain text. Asks for blocks of @p identity only. @p
 * probe_interval_ns: how often a failed peer is asked for its health. */
qmla_status_t qmw_prefill_client_create(const char *address, const struct qmp_tls *tls,
					const qmla_identity_t *identity, int64_t probe_interval_ns,
					struct qmw_prefill_client **client);
void qmw_prefill_client_destroy(
	struct qmw_prefill_client *client); /**< accepts NULL; no call may be running */

const char *qmw_prefill_client_address(const struct qmw_prefill_client *client);

/** False while it is left out. */
bool qmw_prefill_client_usable(const struct qmw_prefill_client *client);

/** What a prefill did. */
struct qmw_prefill_reply {
	uint32_t blocks_hit, blocks_computed, blocks_published;
	char note[512]; /**< first of its notes, "" when none; on a failure the reason */
};

/** Asks for the full blocks of @p tokens; does not wait. */
qmla_status_t qmw_prefill_call_start(struct qmw_prefill_client *client, const uint32_t *tokens,
				     uint32_t count, const char *name_space, qmc_time_t deadline,
				     struct qmw_prefill_call **call);

/** True when end would not block. */
bool qmw_prefill_call_done(const struct qmw_prefill_call *call);

/**
 * Checks that the peer is alive while nothing seems to happen: blocks for at most
 * @p timeout_ns. Not OK: it does not answer, and is left out from now on.
 */
qmla_status_t qmw_prefill_call_check(struct qmw_prefill_call *call, int64_t timeout_ns);

/**
 * Waits for the answer (cancels it first when @p cancel) and frees the call. A
 * failure that is the peer's, not the request's, leaves the peer out. @p reply is
 * filled in either case.
 */
qmla_status_t qmw_prefill_call_end(struct qmw_prefill_call *call, bool cancel,
				   struct qmw_prefill_reply *reply);

#endif /* QMW_PREFILL_CLIENT_H */
