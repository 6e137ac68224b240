/* SPDX-License-Identifier: Apache-2.0 */
#include "node_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_NS (10 * QMC_NS_PER_S)

struct qms_service_config node_config(void)
{
	return (struct qms_service_config){
		.node_id = "test-node",
		.listen = "127.0.0.1:0",
		.data = {.listen = "127.0.0.1:0", .shm_dir = "none"},
		.store = {.pool_bytes = 4u << 20,
			  .max_identities = 2,
			  .max_leases = 64,
			  .max_tickets = 256,
			  .max_pins = 64},
	};
}

static void small_layout(struct qmk_layout *layout)
{
	if (qmk_layout_init(QMK_FORMAT_C4R4, 2, 64, 32, layout) != QMLA_OK)
		abort();
}

struct qms_service_config node_config_slots(uint32_t slots)
{
	struct qms_service_config config = node_config();
	struct qmk_layout layout;

	small_layout(&layout);
	/* The arena is rounded up to pages, which must not make room for one more slot. */
	config.store.max_identities = 1;
	config.store.pool_bytes = slots * layout.block_bytes / 4096 * 4096;
	if (config.store.pool_bytes / layout.block_bytes < slots)
		config.store.pool_bytes += 4096;
	return config;
}

bool node_start(struct node *node, const struct qms_service_config *config)
{
	char target[QMC_ADDRESS_TEXT_MAX];
	struct qms_service *service;
	struct qmc_address address;

	if (qms_service_create(config, &service) != QMLA_OK ||
	    qmc_address_parse(config->listen, &address) != QMLA_OK)
		return false;
	qms_service_set_ready(service, true);
	address.port = qms_service_port(service);
	qmc_address_format(&address, target);
	if (!node_attach(node, target)) {
		qms_service_destroy(service, 0);
		return false;
	}
	node->service = service;
	return true;
}

bool node_attach(struct node *node, const char *target)
{
	struct qmp_channel_config channel = {.target = target};

	memset(node, 0, sizeof(*node));
	small_layout(&node->layout);
	memset(&node->identity, 0x42, sizeof(node->identity));
	return qmp_channel_create(&channel, &node->channel) == QMLA_OK;
}

void node_stop(struct node *node)
{
	if (node->endpoint)
		node->ops->endpoint_destroy(node->endpoint);
	qmp_channel_destroy(node->channel);
	qms_service_destroy(node->service, QMC_NS_PER_S);
}

qmla_status_t node_call(struct node *node, const char *method, const ProtobufCMessage *request,
			const ProtobufCMessageDescriptor *type, void *response)
{
	ProtobufCMessage *answer = NULL;
	struct qmp_error error = {""};
	char path[64];
	qmla_status_t status;

	snprintf(path, sizeof(path), "/qmla.v1.Cache/%s", method);
	status = qmp_channel_call(node->channel, path, request, type, qmc_clock_after(CALL_NS),
				  &answer, &error);
	snprintf(node->detail, sizeof(node->detail), "%s", error.detail);
	*(ProtobufCMessage **)response = status == QMLA_OK ? answer : NULL;
	return status;
}

ProtobufCBinaryData node_identity(struct node *node)
{
	return (ProtobufCBinaryData){sizeof(node->identity.bytes), node->identity.bytes};
}

static qmla_status_t adopt(struct node *node, const Qmla__V1__ConnectResponse *response)
{
	node->ops = qmt_transport_find(response->transport);
	if (!node->ops || response->address.len > sizeof(node->address.bytes) ||
	    response->region.len > sizeof(node->region.bytes))
		return QMLA_ERR_FORMAT;
	memcpy(node->address.bytes, response->address.data, response->address.len);
	node->address.length = (uint32_t)response->address.len;
	memcpy(node->region.bytes, response->region.data, response->region.len);
	node->region.length = (uint32_t)response->region.len;
	node->incarnation = response->incarnation;
	node->slots = response->slots;
	return node->ops->endpoint_create(&node->address, qmc_clock_after(CALL_NS),
					  &node->endpoint);
}

static void read_boot_id(char text[64])
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

	text[0] = '\0';
	if (file && fgets(text, 64, file))
		text[strcspn(text, "\n")] = '\0';
	if (file)
		fclose(file);
}

qmla_status_t node_connect(struct node *node, const char *transport)
{
	Qmla__V1__ConnectRequest request = QMLA__V1__CONNECT_REQUEST__INIT;
	Qmla__V1__Layout layout = QMLA__V1__LAYOUT__INIT;
	Qmla__V1__ConnectResponse *response;
	char *transports[] = {(char *)(uintptr_t)transport};
	char host[64];
	qmla_status_t status;

	read_boot_id(host);
	layout.format = node->layout.format;
	layout.layers = node->layout.layers;
	layout.content_dim = node->layout.content_dim;
	layout.rope_dim = node->layout.rope_dim;
	layout.page_tokens = QMK_PAGE_TOKENS;
	layout.version = QMK_FORMAT_VERSION;
	layout.fingerprint = qmk_layout_fingerprint(&node->layout);
	request.identity = node_identity(node);
	request.layout = &layout;
	request.transports = transports;
	request.n_transports = 1;
	request.host_id = host;
	status = node_call(node, "Connect", &request.base, &qmla__v1__connect_response__descriptor,
			   &response);
	if (status != QMLA_OK)
		return status;
	if (node->endpoint)
		node->ops->endpoint_destroy(node->endpoint);
	node->endpoint = NULL;
	status = adopt(node, response);
	qmp_message_free(&response->base);
	return status;
}

void node_keys_fill(struct node_keys *keys, uint64_t first, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t number = first + i;

		memset(keys->bytes[i], 0xa5, sizeof(keys->bytes[i]));
		memcpy(keys->bytes[i], &number, sizeof(number));
		keys->data[i] = (ProtobufCBinaryData){sizeof(keys->bytes[i]), keys->bytes[i]};
	}
}

Qmla__V1__LookupResponse *node_lookup(struct node *node, uint64_t first, size_t count,
				      uint32_t lease_ms)
{
	Qmla__V1__LookupRequest request = QMLA__V1__LOOKUP_REQUEST__INIT;
	Qmla__V1__LookupResponse *response;
	struct node_keys keys;

	node_keys_fill(&keys, first, count);
	request.identity = node_identity(node);
	request.keys = keys.data;
	request.n_keys = count;
	request.lease_ms = lease_ms;
	node_call(node, "Lookup", &request.base, &qmla__v1__lookup_response__descriptor, &response);
	return response;
}

Qmla__V1__ReserveResponse *node_reserve(struct node *node, uint64_t first, size_t count,
					uint32_t lease_ms)
{
	Qmla__V1__ReserveRequest request = QMLA__V1__RESERVE_REQUEST__INIT;
	Qmla__V1__ReserveResponse *response;
	struct node_keys keys;

	node_keys_fill(&keys, first, count);
	request.identity = node_identity(node);
	request.keys = keys.data;
	request.n_keys = count;
	request.lease_ms = lease_ms;
	node_call(node, "Reserve", &request.base, &qmla__v1__reserve_response__descriptor,
		  &response);
	return response;
}

Qmla__V1__Code node_has(struct node *node, uint64_t key)
{
	Qmla__V1__LookupResponse *response = node_lookup(node, key, 1, 0);
	Qmla__V1__Code code = response ? response->entries[0]->code : QMLA__V1__CODE__CODE_INTERNAL;

	if (response)
		qmp_message_free(&response->base);
	return code;
}

Qmla__V1__Code node_commit(struct node *node, uint64_t ticket, uint64_t digest)
{
	Qmla__V1__CommitRequest request = QMLA__V1__COMMIT_REQUEST__INIT;
	Qmla__V1__CommitItem item = QMLA__V1__COMMIT_ITEM__INIT;
	Qmla__V1__CommitItem *items[] = {&item};
	Qmla__V1__CommitResponse *response;
	Qmla__V1__Code code;

	item.ticket = ticket;
	item.digest = digest;
	request.incarnation = node->incarnation;
	request.items = items;
	request.n_items = 1;
	if (node_call(node, "Commit", &request.base, &qmla__v1__commit_response__descriptor,
		      &response) != QMLA_OK)
		return QMLA__V1__CODE__CODE_INTERNAL;
	code = response->codes[0];
	qmp_message_free(&response->base);
	return code;
}

Qmla__V1__Code node_release(struct node *node, uint64_t lease)
{
	Qmla__V1__ReleaseRequest request = QMLA__V1__RELEASE_REQUEST__INIT;
	Qmla__V1__ReleaseResponse *response;
	Qmla__V1__Code code;

	request.incarnation = node->incarnation;
	request.leases = &lease;
	request.n_leases = 1;
	if (node_call(node, "Release", &request.base, &qmla__v1__release_response__descriptor,
		      &response) != QMLA_OK)
		return QMLA__V1__CODE__CODE_INTERNAL;
	code = response->codes[0];
	qmp_message_free(&response->base);
	return code;
}

uint64_t node_block(struct node *node, uint64_t key, uint64_t generation, void *block)
{
	struct qmk_block_info info = {.generation = generation};
	struct node_keys keys;
	uint8_t *pages = (uint8_t *)block + node->layout.header_bytes;
	uint64_t bytes = node->layout.block_bytes - node->layout.header_bytes;

	node_keys_fill(&keys, key, 1);
	memcpy(info.key, keys.bytes[0], sizeof(info.key));
	memcpy(info.identity, node->identity.bytes, sizeof(info.identity));
	for (uint64_t i = 0; i < bytes; i++)
		pages[i] = (uint8_t)(key * 31 + i * 7 + (i >> 8));
	qmk_block_seal(&node->layout, &info, block);
	return qmk_block_digest(&node->layout, block);
}

qmla_status_t node_move(struct node *node, enum qmt_access access, uint64_t offset, void *local,
			uint64_t length, const ProtobufCBinaryData *capability)
{
	struct qmt_op op = {.access = access,
			    .remote = &node->region,
			    .remote_offset = offset,
			    .local = local,
			    .length = length,
			    .deadline = qmc_clock_after(CALL_NS)};

	if (capability->len == sizeof(op.capability))
		memcpy(op.capability, capability->data, sizeof(op.capability));
	return qmt_endpoint_run(node->ops, node->endpoint, &op, 1);
}

Qmla__V1__Code node_put(struct node *node, uint64_t key)
{
	Qmla__V1__ReserveResponse *reserved = node_reserve(node, key, 1, 5000);
	Qmla__V1__Code code = QMLA__V1__CODE__CODE_INTERNAL;
	void *block = malloc(node->layout.block_bytes);

	if (reserved && block) {
		Qmla__V1__ReserveEntry *entry = reserved->entries[0];

		code = entry->code;
		if (code == QMLA__V1__CODE__CODE_OK) {
			uint64_t digest = node_block(node, key, entry->generation, block);

			code = node_move(node, QMT_WRITE, entry->offset, block, entry->length,
					 &reserved->capability) == QMLA_OK
				       ? node_commit(node, entry->ticket, digest)
				       : QMLA__V1__CODE__CODE_IO;
		}
	}
	if (reserved)
		qmp_message_free(&reserved->base);
	free(block);
	return code;
}

bool node_await(struct node *node, bool (*when)(const struct qms_store_stats *stats))
{
	qmc_time_t deadline = qmc_clock_after(5 * QMC_NS_PER_S);
	struct qms_store_stats stats;

	do {
		qms_store_stats(qms_service_store(node->service), &stats);
		if (when(&stats))
			return true;
		qmc_clock_sleep_until(qmc_clock_after(2 * QMC_NS_PER_MS));
	} while (qmc_clock_left(deadline) > 0);
	return false;
}

static bool nothing_moves(const struct qms_store_stats *stats)
{
	return stats->inflight == 0;
}

bool node_sound(struct node *node)
{
	char why[256] = "transfers do not end";

	/* A client may have its last byte before the server has put the slot down. */
	if (node_await(node, nothing_moves) &&
	    qms_store_check(qms_service_store(node->service), why, sizeof(why)))
		return true;
	printf("%s\n", why);
	return false;
}
