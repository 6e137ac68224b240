/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The latest fenced capabilities: exactly the last QMT_FENCES_MAX of them, in
 * fixed memory. The caller serialises calls; none blocks or allocates but create.
 */
#ifndef QMT_FENCES_H
#define QMT_FENCES_H

#include "transport/transport.h"

#define QMT_FENCES_MAX 16384

struct qmt_fences;

/** QMLA_ERR_NO_MEMORY. */
qmla_status_t qmt_fences_create(struct qmt_fences **fences);
void qmt_fences_destroy(struct qmt_fences *fences); /**< accepts NULL */

/** Remembers @p capability, in the place of the one that was fenced longest ago. */
void qmt_fences_add(struct qmt_fences *fences, const uint8_t capability[QMT_CAPABILITY_BYTES]);

/** True when @p capability is among the remembered ones. */
bool qmt_fences_has(const struct qmt_fences *fences,
		    const uint8_t capability[QMT_CAPABILITY_BYTES]);

/** Hash of a capability in which every bit counts; not secret. */
uint64_t qmt_capability_hash(const uint8_t capability[QMT_CAPABILITY_BYTES]);

#endif /* QMT_FENCES_H */
