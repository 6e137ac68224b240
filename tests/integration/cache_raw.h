/* SPDX-License-Identifier: Apache-2.0 */
/** @file A client that speaks to a node by hand: what the library would never do. */
#ifndef CACHE_RAW_H
#define CACHE_RAW_H

#include <stdint.h>

#include <qmla/cache.h>

#include "proto/rpc_client.h"

/** Connect with this identity and layout. */
qmla_status_t raw_connect(struct qmp_channel *channel, const qmla_identity_t *identity,
			  const qmla_layout_t *layout);

/** Reserve; @p codes gets one a key, @p granted how many are ok. */
qmla_status_t raw_reserve(struct qmp_channel *channel, const qmla_identity_t *identity,
			  const qmla_key_t *keys, size_t count, uint32_t lease_ms, size_t *granted);

/** Lookup with a lease; @p lease and @p incarnation are for raw_release. */
qmla_status_t raw_lease(struct qmp_channel *channel, const qmla_identity_t *identity,
			const qmla_key_t *keys, size_t count, uint32_t lease_ms, uint64_t *lease,
			uint64_t *incarnation);
qmla_status_t raw_release(struct qmp_channel *channel, uint64_t lease, uint64_t incarnation);

#endif /* CACHE_RAW_H */
