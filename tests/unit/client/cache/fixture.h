/* SPDX-License-Identifier: Apache-2.0 */
/** @file A client, some fake nodes, and blocks with known bytes. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <qmla/cache.h>

#include "kernels/layout.h"
#include "tests/unit/client/cache/fake_node.h"

#define FIXTURE_NODES  3
#define FIXTURE_BLOCKS 40

struct fixture {
	qmla_layout_t layout;
	struct qmk_layout bytes;
	qmla_identity_t identity;
	struct fake_node *nodes[FIXTURE_NODES];
	size_t node_count;
	qmla_client_config_t config; /**< of the client; nodes in node_list */
	char node_list[256];
	qmla_client_t *client;
	qmla_key_t keys[FIXTURE_BLOCKS];
	uint8_t *written[FIXTURE_BLOCKS]; /**< sealed blocks */
	uint8_t *read[FIXTURE_BLOCKS];    /**< room to fetch into, filled with 0xee */
	uint8_t *memory;
};

/** Starts @p nodes fake nodes and a client of them with short timeouts. Aborts on failure. */
struct fixture *fixture_create(size_t nodes);
void fixture_destroy(struct fixture *fixture);

/** A client again, after config was changed. */
void fixture_reopen(struct fixture *fixture);

/** Publishes the first @p count blocks and checks that all went through. */
void fixture_publish(struct fixture *fixture, size_t count);

/** Leading blocks that fetch gives within @p timeout_ms, each checked against what was written. */
size_t fixture_fetch(struct fixture *fixture, size_t count, uint32_t timeout_ms,
		     qmla_status_t *statuses, qmla_fetch_stats_t *stats);

/** The node that holds key @p index; -1: none. */
int fixture_holder(struct fixture *fixture, size_t index);

/** Waits up to two seconds until @p value is at least @p least. */
bool fixture_reaches(_Atomic uint32_t *value, uint32_t least);

#endif /* FIXTURE_H */
