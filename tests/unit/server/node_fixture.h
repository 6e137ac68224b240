/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A node in this process, called through real gRPC and the real transports on
 * ports that the kernel chooses.
 */
#ifndef TEST_NODE_FIXTURE_H
#define TEST_NODE_FIXTURE_H

#include "kernels/block.h"
#include "proto/code.h"
#include "proto/rpc_client.h"
#include "qmla/v1/cache.pb-c.h"
#include "common/address.h"
#include "server/service.h"

#define BATCH 16 /**< keys a test names at most in one of the helpers below */

struct node {
	struct qms_service *service;
	struct qmp_channel *channel;
	const struct qmt_transport_ops *ops; /**< after node_connect */
	struct qmt_endpoint *endpoint;
	struct qmt_server_address address;
	struct qmt_handle region;
	uint64_t incarnation;
	uint64_t slots;
	struct qms_identity identity;
	struct qmk_layout layout;
	char detail[QMP_DETAIL_MAX]; /**< of the last failed call */
};

/** Pools and tables of a test's size; change what the test is about. */
struct qms_service_config node_config(void);

/** A config whose one pool has exactly @p slots slots. */
struct qms_service_config node_config_slots(uint32_t slots);

/** Starts a node and a channel to it; false with a message when that fails. */
bool node_start(struct node *node, const struct qms_service_config *config);
void node_stop(struct node *node);

/** A channel to a node that runs elsewhere, at @p target; node_stop as well. */
bool node_attach(struct node *node, const char *target);

/** One call of "/qmla.v1.Cache/@p method"; the answer is freed with qmp_message_free. */
qmla_status_t node_call(struct node *node, const char *method, const ProtobufCMessage *request,
			const ProtobufCMessageDescriptor *type, void *response);

/** Connect with @p transport ("tcp", "shm"), and an endpoint to the data plane. */
qmla_status_t node_connect(struct node *node, const char *transport);

/* Keys of requests: key number @p first and those that follow. */
struct node_keys {
	uint8_t bytes[BATCH][16];
	ProtobufCBinaryData data[BATCH];
};
void node_keys_fill(struct node_keys *keys, uint64_t first, size_t count);
ProtobufCBinaryData node_identity(struct node *node);

/* The answers below are the caller's; NULL when the call failed (see detail). */
Qmla__V1__LookupResponse *node_lookup(struct node *node, uint64_t first, size_t count,
				      uint32_t lease_ms);
Qmla__V1__ReserveResponse *node_reserve(struct node *node, uint64_t first, size_t count,
					uint32_t lease_ms);

/** Code of one key, without lease. */
Qmla__V1__Code node_has(struct node *node, uint64_t key);
Qmla__V1__Code node_commit(struct node *node, uint64_t ticket, uint64_t digest);
Qmla__V1__Code node_release(struct node *node, uint64_t lease);

/** Fills a block for @p key with pages that depend on it; returns the digest. */
uint64_t node_block(struct node *node, uint64_t key, uint64_t generation, void *block);

/** Moves bytes; the transport's status. */
qmla_status_t node_move(struct node *node, enum qmt_access access, uint64_t offset, void *local,
			uint64_t length, const ProtobufCBinaryData *capability);

/** Reserve, write, commit. */
Qmla__V1__Code node_put(struct node *node, uint64_t key);

/** Waits up to 5 s until @p node's store says so. */
bool node_await(struct node *node, bool (*when)(const struct qms_store_stats *stats));

/** Waits until nothing moves, then checks every invariant of the store; prints what is broken. */
bool node_sound(struct node *node);

#endif /* TEST_NODE_FIXTURE_H */
