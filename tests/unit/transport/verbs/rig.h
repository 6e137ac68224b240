/* SPDX-License-Identifier: Apache-2.0 */
/** @file An owner of memory over fake verbs that the test sets up itself. */
#ifndef RIG_H
#define RIG_H

#include "../owner.h"
#include "fake_verbs.h"
#include "transport/verbs/endpoint_internal.h"

#define MIB (UINT64_C(1) << 20)

/** cmocka setup: fake verbs without a device. */
int rig_setup(void **state);
/** cmocka teardown: fails when anything was left open. */
int rig_teardown(void **state);

/** Puts server and client on the devices named; NULL: any. */
void rig_use(const char *server, const char *client);

/** An owner of @p bytes of patterned memory. */
void rig_start(struct owner *owner, uint64_t bytes, uint32_t max_peers, int64_t idle_timeout_ns);

/** Runs one operation. */
qmla_status_t rig_run(struct owner *owner, struct qmt_endpoint *endpoint, enum qmt_access access,
		      uint64_t offset, void *local, uint64_t length);

/** Waits up to two seconds for the server to have @p count peers. */
bool rig_has_peers(struct owner *owner, uint64_t count);

/** The insides of an endpoint. */
struct qmt_verbs_endpoint *rig_inside(struct qmt_endpoint *endpoint);

/**
 * A writer that does as it likes: RDMA WRITE of @p bytes to @p address with @p rkey on the
 * endpoint's first rail, past all bookkeeping. How it completed; the endpoint is then of no
 * use but to be destroyed.
 */
enum ibv_wc_status rig_rogue_write(struct qmt_endpoint *endpoint, uint64_t address, uint32_t rkey,
				   const void *data, uint32_t bytes);

#endif /* RIG_H */
