/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/cache/fake_node.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/digest.h"
#include "proto/rpc_server.h"
#include "qmla/v1/cache.pb-c.h"
#include "transport/transport.h"

/* Not assert: a release build keeps it. */
#define must(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "fake node: line %d: %s\n", __LINE__, #condition);         \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#define WATCHERS 8
#define REGION   1
#define PARKED   64

enum slot_state { SLOT_FREE, SLOT_RESERVED, SLOT_COMMITTED };

struct fake_slot {
	enum slot_state state;
	qmla_key_t key;
	uint64_t generation, digest, ticket;
};

struct fake_state {
	struct fake_node *node;
	uint64_t block_bytes, incarnation;
	uint8_t *pool;
	struct qmp_service service;
	struct qmp_server *rpc;
	struct qmt_server *data;
	struct qmt_handle region;
	struct qmt_server_address address;
	uint8_t capability[QMT_CAPABILITY_BYTES];
	pthread_mutex_t lock; /* what follows */
	struct fake_slot slots[FAKE_SLOTS];
	uint64_t next_ticket;
	struct qmp_call *watchers[WATCHERS];
	struct qmp_call *parked[PARKED];
	size_t parked_count;
};

static uint64_t incarnation_told(struct fake_state *state)
{
	return state->incarnation + (atomic_load(&state->node->faults.other_incarnation) ? 1 : 0);
}

static struct fake_slot *find_slot(struct fake_state *state, const ProtobufCBinaryData *key)
{
	for (size_t i = 0; i < FAKE_SLOTS && key->len == sizeof(qmla_key_t); i++) {
		if (state->slots[i].state != SLOT_FREE &&
		    memcmp(state->slots[i].key.bytes, key->data, key->len) == 0)
			return &state->slots[i];
	}
	return NULL;
}

static uint64_t offset_of(struct fake_state *state, const struct fake_slot *slot)
{
	return (uint64_t)(slot - state->slots) * state->block_bytes;
}

/* True when the call was put aside for good. */
static bool park(struct fake_state *state, struct qmp_call *call)
{
	bool parked = false;

	if (!atomic_load(&state->node->faults.never_answers))
		return false;
	pthread_mutex_lock(&state->lock);
	if (state->parked_count < PARKED) {
		state->parked[state->parked_count++] = call;
		parked = true;
	}
	pthread_mutex_unlock(&state->lock);
	return parked;
}

static void serve_describe(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	struct fake_state *state = service;
	Qmla__V1__DescribeResponse response;

	(void)request;
	atomic_fetch_add(&state->node->counts.describes, 1);
	if (park(state, call))
		return;
	qmla__v1__describe_response__init(&response);
	response.incarnation = state->incarnation;
	qmp_call_reply(call, &response.base);
}

static void serve_connect(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	struct fake_state *state = service;
	Qmla__V1__ConnectResponse response;
	static char tcp[] = "tcp", nonsense[] = "pigeon";

	(void)request;
	atomic_fetch_add(&state->node->counts.connects, 1);
	if (park(state, call))
		return;
	atomic_store(&state->node->faults.no_pool, false);
	qmla__v1__connect_response__init(&response);
	response.incarnation = state->incarnation;
	response.transport = atomic_load(&state->node->faults.connect_nonsense) ? nonsense : tcp;
	response.address.data = state->address.bytes;
	response.address.len = state->address.length;
	response.region.data = state->region.bytes;
	response.region.len = state->region.length;
	response.slot_bytes = state->block_bytes;
	response.slots = FAKE_SLOTS;
	response.max_batch_keys = 16;
	response.max_lease_ms = 60000;
	qmp_call_reply(call, &response.base);
}

static void fill_lookup_entry(struct fake_state *state, const ProtobufCBinaryData *key,
			      Qmla__V1__LookupEntry *entry)
{
	struct fake_faults *faults = &state->node->faults;
	const struct fake_slot *slot = find_slot(state, key);

	qmla__v1__lookup_entry__init(entry);
	entry->code = QMLA__V1__CODE__CODE_NOT_FOUND;
	if (!slot || slot->state != SLOT_COMMITTED)
		return;
	entry->code =
		atomic_load(&faults->unknown_code) ? (Qmla__V1__Code)33 : QMLA__V1__CODE__CODE_OK;
	entry->offset = offset_of(state, slot);
	if (atomic_load(&faults->outside_pool))
		entry->offset = state->block_bytes * FAKE_SLOTS - 128;
	entry->length = state->block_bytes - (atomic_load(&faults->wrong_length) ? 128 : 0);
	entry->generation = slot->generation + (uint64_t)atomic_load(&faults->generation_shift);
	entry->digest = slot->digest ^ (atomic_load(&faults->other_digest) ? 1 : 0);
}

static void serve_lookup(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	struct fake_faults *faults = &state->node->faults;
	const Qmla__V1__LookupRequest *request = (const Qmla__V1__LookupRequest *)message;
	Qmla__V1__LookupEntry *entries = calloc(request->n_keys + 1, sizeof(*entries));
	Qmla__V1__LookupEntry **list = calloc(request->n_keys + 1, sizeof(*list));
	Qmla__V1__LookupResponse response;

	must(entries && list);
	atomic_fetch_add(&state->node->counts.lookups, 1);
	if (park(state, call))
		goto out;
	if (atomic_load(&faults->no_pool)) {
		qmp_call_fail(call, QMLA_ERR_NOT_FOUND, "no pool");
		goto out;
	}
	qmc_clock_sleep_until(qmc_clock_after(atomic_load(&faults->lookup_delay_ns)));
	qmla__v1__lookup_response__init(&response);
	response.incarnation = incarnation_told(state);
	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < request->n_keys; i++) {
		fill_lookup_entry(state, &request->keys[i], &entries[i]);
		list[i] = &entries[i];
	}
	pthread_mutex_unlock(&state->lock);
	response.entries = list;
	response.n_entries = request->n_keys - (atomic_load(&faults->short_answer) ? 1 : 0);
	if (request->lease_ms) {
		uint32_t forced = atomic_load(&faults->lease_ms);

		response.lease = 1 + atomic_fetch_add(&state->node->counts.leases, 1);
		response.lease_ms = forced ? forced : request->lease_ms;
		response.capability.data = state->capability;
		response.capability.len =
			atomic_load(&faults->no_capability) ? 3 : QMT_CAPABILITY_BYTES;
	}
	qmp_call_reply(call, &response.base);
out:
	free(list);
	free(entries);
}

static void serve_renew(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	const Qmla__V1__RenewRequest *request = (const Qmla__V1__RenewRequest *)message;
	Qmla__V1__Code code = atomic_load(&state->node->faults.refuse_renewal)
				      ? QMLA__V1__CODE__CODE_LEASE_EXPIRED
				      : QMLA__V1__CODE__CODE_OK;
	Qmla__V1__RenewResponse response;

	atomic_fetch_add(&state->node->counts.renewals, 1);
	qmla__v1__renew_response__init(&response);
	response.codes = &code;
	response.n_codes = 1;
	response.lease_ms = request->lease_ms;
	qmp_call_reply(call, &response.base);
}

static void serve_release(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	Qmla__V1__ReleaseResponse response;

	(void)message;
	atomic_fetch_add(&state->node->counts.releases, 1);
	qmla__v1__release_response__init(&response);
	qmp_call_reply(call, &response.base);
}

static Qmla__V1__Code reserve_one(struct fake_state *state, const ProtobufCBinaryData *key,
				  Qmla__V1__ReserveEntry *entry)
{
	struct fake_slot *slot = find_slot(state, key);

	if (slot)
		return slot->state == SLOT_COMMITTED ? QMLA__V1__CODE__CODE_ALREADY_EXISTS
						     : QMLA__V1__CODE__CODE_BUSY;
	for (size_t i = 0; i < FAKE_SLOTS && !slot; i++) {
		if (state->slots[i].state == SLOT_FREE)
			slot = &state->slots[i];
	}
	if (!slot || key->len != sizeof(qmla_key_t))
		return QMLA__V1__CODE__CODE_RESOURCE_EXHAUSTED;
	slot->state = SLOT_RESERVED;
	memcpy(slot->key.bytes, key->data, sizeof(slot->key.bytes));
	slot->generation++;
	slot->ticket = ++state->next_ticket;
	entry->ticket = slot->ticket;
	entry->offset = offset_of(state, slot);
	entry->length = state->block_bytes;
	entry->generation = slot->generation;
	return QMLA__V1__CODE__CODE_OK;
}

static bool take_full(struct fake_faults *faults)
{
	uint32_t left = atomic_load(&faults->full_times);

	return left > 0 && atomic_compare_exchange_strong(&faults->full_times, &left, left - 1);
}

static void serve_reserve(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	struct fake_faults *faults = &state->node->faults;
	const Qmla__V1__ReserveRequest *request = (const Qmla__V1__ReserveRequest *)message;
	Qmla__V1__ReserveEntry entries[16], *list[16];
	Qmla__V1__ReserveResponse response;
	uint32_t full_after = atomic_load(&faults->full_after);
	bool full = take_full(faults);

	must(request->n_keys <= 16);
	atomic_fetch_add(&state->node->counts.reserves, 1);
	if (park(state, call))
		return;
	if (atomic_load(&faults->no_pool)) {
		qmp_call_fail(call, QMLA_ERR_NOT_FOUND, "no pool");
		return;
	}
	if (atomic_load(&faults->draining)) {
		qmp_call_fail(call, QMLA_ERR_DRAINING, "leaving");
		return;
	}
	qmla__v1__reserve_response__init(&response);
	response.incarnation = incarnation_told(state);
	response.lease_ms = request->lease_ms;
	response.retry_after_ms = 10;
	response.capability.data = state->capability;
	response.capability.len = QMT_CAPABILITY_BYTES;
	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < request->n_keys; i++) {
		list[i] = &entries[i];
		qmla__v1__reserve_entry__init(&entries[i]);
		if (full || (full_after && i >= full_after))
			entries[i].code = QMLA__V1__CODE__CODE_RESOURCE_EXHAUSTED;
		else
			entries[i].code = reserve_one(state, &request->keys[i], &entries[i]);
	}
	pthread_mutex_unlock(&state->lock);
	response.entries = list;
	response.n_entries = request->n_keys;
	qmp_call_reply(call, &response.base);
}

static struct fake_slot *find_ticket(struct fake_state *state, uint64_t ticket)
{
	for (size_t i = 0; i < FAKE_SLOTS; i++) {
		if (state->slots[i].state == SLOT_RESERVED && state->slots[i].ticket == ticket)
			return &state->slots[i];
	}
	return NULL;
}

static void serve_commit(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	const Qmla__V1__CommitRequest *request = (const Qmla__V1__CommitRequest *)message;
	Qmla__V1__Code codes[16];
	Qmla__V1__CommitResponse response;

	must(request->n_items <= 16);
	atomic_fetch_add(&state->node->counts.commits, 1);
	if (park(state, call))
		return;
	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < request->n_items; i++) {
		struct fake_slot *slot = find_ticket(state, request->items[i]->ticket);

		codes[i] = slot ? QMLA__V1__CODE__CODE_OK : QMLA__V1__CODE__CODE_LEASE_EXPIRED;
		if (slot) {
			slot->state = SLOT_COMMITTED;
			slot->digest = request->items[i]->digest;
		}
	}
	pthread_mutex_unlock(&state->lock);
	qmla__v1__commit_response__init(&response);
	response.codes = codes;
	response.n_codes = request->n_items;
	qmp_call_reply(call, &response.base);
}

static void serve_abort(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	const Qmla__V1__AbortRequest *request = (const Qmla__V1__AbortRequest *)message;
	Qmla__V1__AbortResponse response;

	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < request->n_tickets; i++) {
		struct fake_slot *slot = find_ticket(state, request->tickets[i]);

		if (slot)
			slot->state = SLOT_FREE;
	}
	pthread_mutex_unlock(&state->lock);
	atomic_fetch_add(&state->node->counts.aborts, 1);
	qmla__v1__abort_response__init(&response);
	qmp_call_reply(call, &response.base);
}

static void serve_report(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	const Qmla__V1__ReportRequest *request = (const Qmla__V1__ReportRequest *)message;
	Qmla__V1__Code code = QMLA__V1__CODE__CODE_NOT_FOUND;
	Qmla__V1__ReportResponse response;
	struct fake_slot *slot;

	pthread_mutex_lock(&state->lock);
	slot = find_slot(state, &request->items[0]->key);
	if (slot && slot->generation == request->items[0]->generation) {
		slot->state = SLOT_FREE;
		code = QMLA__V1__CODE__CODE_OK;
	}
	pthread_mutex_unlock(&state->lock);
	atomic_fetch_add(&state->node->counts.reports, 1);
	qmla__v1__report_response__init(&response);
	response.codes = &code;
	response.n_codes = 1;
	qmp_call_reply(call, &response.base);
}

static void serve_remove(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	const Qmla__V1__RemoveRequest *request = (const Qmla__V1__RemoveRequest *)message;
	Qmla__V1__Code *codes = calloc(request->n_keys + 1, sizeof(*codes));
	Qmla__V1__RemoveResponse response;

	must(codes);
	qmla__v1__remove_response__init(&response);
	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < request->n_keys; i++) {
		struct fake_slot *slot = find_slot(state, &request->keys[i]);

		codes[i] = slot ? QMLA__V1__CODE__CODE_OK : QMLA__V1__CODE__CODE_NOT_FOUND;
		if (slot)
			slot->state = SLOT_FREE;
	}
	for (size_t i = 0; request->all && i < FAKE_SLOTS; i++) {
		response.removed += state->slots[i].state == SLOT_COMMITTED;
		state->slots[i].state = SLOT_FREE;
	}
	pthread_mutex_unlock(&state->lock);
	response.codes = codes;
	response.n_codes = request->n_keys;
	qmp_call_reply(call, &response.base);
	free(codes);
}

/* Pins and unpins say ok for what is there. */
static void serve_pin(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	const Qmla__V1__PinRequest *request = (const Qmla__V1__PinRequest *)message;
	Qmla__V1__Code *codes = calloc(request->n_keys + 1, sizeof(*codes));
	Qmla__V1__PinResponse response;

	must(codes);
	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < request->n_keys; i++)
		codes[i] = find_slot(state, &request->keys[i]) ? QMLA__V1__CODE__CODE_OK
							       : QMLA__V1__CODE__CODE_NOT_FOUND;
	pthread_mutex_unlock(&state->lock);
	qmla__v1__pin_response__init(&response);
	response.codes = codes;
	response.n_codes = request->n_keys;
	qmp_call_reply(call, &response.base);
	free(codes);
}

static void serve_stats(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	static char id[] = "fake";
	Qmla__V1__StatsResponse response;

	(void)message;
	qmla__v1__stats_response__init(&response);
	response.incarnation = state->incarnation;
	response.node_id = id;
	response.capacity_bytes = FAKE_SLOTS * state->block_bytes;
	response.blocks = fake_node_blocks(state->node);
	qmp_call_reply(call, &response.base);
}

static void serve_watch(void *service, struct qmp_call *call, const ProtobufCMessage *message)
{
	struct fake_state *state = service;
	const Qmla__V1__WatchRequest *request = (const Qmla__V1__WatchRequest *)message;
	Qmla__V1__WatchEvent event;
	size_t at = 0;

	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; request->snapshot && i < FAKE_SLOTS; i++) {
		ProtobufCBinaryData key = {sizeof(qmla_key_t), state->slots[i].key.bytes};

		if (state->slots[i].state != SLOT_COMMITTED)
			continue;
		qmla__v1__watch_event__init(&event);
		event.kind = QMLA__V1__WATCH_EVENT__KIND__KIND_INSERTED;
		event.keys = &key;
		event.n_keys = 1;
		(void)qmp_call_send(call, &event.base, qmc_clock_after(QMC_NS_PER_S));
	}
	if (request->snapshot) {
		qmla__v1__watch_event__init(&event);
		event.kind = QMLA__V1__WATCH_EVENT__KIND__KIND_SYNCED;
		(void)qmp_call_send(call, &event.base, qmc_clock_after(QMC_NS_PER_S));
	}
	while (at < WATCHERS && state->watchers[at])
		at++;
	must(at < WATCHERS);
	state->watchers[at] = call;
	pthread_mutex_unlock(&state->lock);
}

void fake_node_event(struct fake_node *node, int kind, const qmla_key_t *key)
{
	struct fake_state *state = node->state;
	ProtobufCBinaryData binary = {sizeof(key->bytes), (uint8_t *)(uintptr_t)key->bytes};
	Qmla__V1__WatchEvent event;

	qmla__v1__watch_event__init(&event);
	event.kind = (Qmla__V1__WatchEvent__Kind)kind;
	event.keys = &binary;
	event.n_keys = 1;
	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < WATCHERS; i++) {
		if (state->watchers[i])
			(void)qmp_call_send(state->watchers[i], &event.base,
					    qmc_clock_after(QMC_NS_PER_S));
	}
	pthread_mutex_unlock(&state->lock);
}

void fake_node_end_watches(struct fake_node *node)
{
	struct fake_state *state = node->state;

	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < WATCHERS; i++) {
		if (state->watchers[i])
			qmp_call_fail(state->watchers[i], QMLA_ERR_UNAVAILABLE, "the end");
		state->watchers[i] = NULL;
	}
	pthread_mutex_unlock(&state->lock);
}

uint32_t fake_node_watchers(struct fake_node *node)
{
	uint32_t count = 0;

	pthread_mutex_lock(&node->state->lock);
	for (size_t i = 0; i < WATCHERS; i++)
		count += node->state->watchers[i] != NULL;
	pthread_mutex_unlock(&node->state->lock);
	return count;
}

static qmla_status_t authorize(void *user, const struct qmt_access_request *request,
			       uint64_t *token)
{
	struct fake_state *state = user;
	struct fake_faults *faults = &state->node->faults;

	if (memcmp(request->capability, state->capability, QMT_CAPABILITY_BYTES) != 0 ||
	    (request->access == QMT_READ && atomic_load(&faults->deny_reads)))
		return QMLA_ERR_PERMISSION;
	if (request->access == QMT_READ) {
		atomic_fetch_add(&state->node->counts.reads, 1);
		qmc_clock_sleep_until(qmc_clock_after(atomic_load(&faults->read_delay_ns)));
	} else {
		atomic_fetch_add(&state->node->counts.writes, 1);
	}
	*token = 0;
	return QMLA_OK;
}

static void finished(void *user, const struct qmt_access_request *request, uint64_t token,
		     qmla_status_t status)
{
	(void)user;
	(void)request;
	(void)token;
	(void)status;
}

static const struct qmp_method methods[] = {
	{"/qmla.v1.Cache/Describe", QMP_UNARY, &qmla__v1__describe_request__descriptor,
	 serve_describe},
	{"/qmla.v1.Cache/Connect", QMP_UNARY, &qmla__v1__connect_request__descriptor,
	 serve_connect},
	{"/qmla.v1.Cache/Lookup", QMP_UNARY, &qmla__v1__lookup_request__descriptor, serve_lookup},
	{"/qmla.v1.Cache/Renew", QMP_UNARY, &qmla__v1__renew_request__descriptor, serve_renew},
	{"/qmla.v1.Cache/Release", QMP_UNARY, &qmla__v1__release_request__descriptor,
	 serve_release},
	{"/qmla.v1.Cache/Reserve", QMP_UNARY, &qmla__v1__reserve_request__descriptor,
	 serve_reserve},
	{"/qmla.v1.Cache/Commit", QMP_UNARY, &qmla__v1__commit_request__descriptor, serve_commit},
	{"/qmla.v1.Cache/Abort", QMP_UNARY, &qmla__v1__abort_request__descriptor, serve_abort},
	{"/qmla.v1.Cache/Report", QMP_UNARY, &qmla__v1__report_request__descriptor, serve_report},
	{"/qmla.v1.Cache/Remove", QMP_UNARY, &qmla__v1__remove_request__descriptor, serve_remove},
	{"/qmla.v1.Cache/Pin", QMP_UNARY, &qmla__v1__pin_request__descriptor, serve_pin},
	{"/qmla.v1.Cache/Unpin", QMP_UNARY, &qmla__v1__unpin_request__descriptor, serve_pin},
	{"/qmla.v1.Cache/Stats", QMP_UNARY, &qmla__v1__stats_request__descriptor, serve_stats},
	{"/qmla.v1.Cache/Watch", QMP_SERVER_STREAM, &qmla__v1__watch_request__descriptor,
	 serve_watch},
};

static void start_data(struct fake_state *state)
{
	struct qmt_server_config config = {
		.listen = "127.0.0.1:0",
		.callbacks = {.user = state, .authorize = authorize, .finished = finished},
	};
	struct qmt_memory memory = {
		.base = state->pool, .bytes = state->block_bytes * FAKE_SLOTS, .fd = -1};
	qmla_status_t status = qmt_tcp_ops.server_create(&config, &state->data);

	must(status == QMLA_OK);
	status = qmt_tcp_ops.server_address(state->data, &state->address);
	must(status == QMLA_OK);
	status = qmt_tcp_ops.server_register(state->data, &memory, REGION, &state->region);
	must(status == QMLA_OK);
}

struct fake_node *fake_node_start(const qmla_layout_t *layout, uint16_t port)
{
	struct fake_node *node = calloc(1, sizeof(*node));
	struct fake_state *state = calloc(1, sizeof(*state));
	char listen[32];
	struct qmp_server_config config = {.listen = listen};
	qmla_status_t status;

	must(node && state);
	node->state = state;
	state->node = node;
	state->service = (struct qmp_service){methods, sizeof(methods) / sizeof(methods[0]), state};
	state->block_bytes = qmla_layout_block_bytes(layout);
	state->pool = aligned_alloc(128, state->block_bytes * FAKE_SLOTS);
	must(state->pool);
	memset(state->pool, 0, state->block_bytes * FAKE_SLOTS);
	pthread_mutex_init(&state->lock, NULL);
	status = qmc_random_bytes(&state->incarnation, sizeof(state->incarnation));
	must(status == QMLA_OK);
	status = qmc_random_bytes(state->capability, sizeof(state->capability));
	must(status == QMLA_OK);
	start_data(state);
	snprintf(listen, sizeof(listen), "127.0.0.1:%u", port);
	status = qmp_server_create(&config, &state->service, 1, &state->rpc);
	must(status == QMLA_OK);
	snprintf(node->address, sizeof(node->address), "127.0.0.1:%u", fake_node_port(node));
	qmp_server_set_serving(state->rpc, true);
	return node;
}

uint16_t fake_node_port(const struct fake_node *node)
{
	return qmp_server_port(node->state->rpc);
}

void fake_node_stop(struct fake_node *node)
{
	struct fake_state *state;

	if (!node)
		return;
	state = node->state;
	fake_node_end_watches(node);
	for (size_t i = 0; i < state->parked_count; i++)
		qmp_call_fail(state->parked[i], QMLA_ERR_CANCELLED, "stopping");
	qmp_server_destroy(state->rpc, 100 * QMC_NS_PER_MS);
	qmt_tcp_ops.server_destroy(state->data);
	pthread_mutex_destroy(&state->lock);
	free(state->pool);
	free(state);
	free(node);
}

uint32_t fake_node_blocks(struct fake_node *node)
{
	uint32_t count = 0;

	pthread_mutex_lock(&node->state->lock);
	for (size_t i = 0; i < FAKE_SLOTS; i++)
		count += node->state->slots[i].state == SLOT_COMMITTED;
	pthread_mutex_unlock(&node->state->lock);
	return count;
}

uint8_t *fake_node_block(struct fake_node *node, const qmla_key_t *key)
{
	ProtobufCBinaryData binary = {sizeof(key->bytes), (uint8_t *)(uintptr_t)key->bytes};
	const struct fake_slot *slot;
	uint8_t *block = NULL;

	pthread_mutex_lock(&node->state->lock);
	slot = find_slot(node->state, &binary);
	if (slot && slot->state == SLOT_COMMITTED)
		block = node->state->pool + offset_of(node->state, slot);
	pthread_mutex_unlock(&node->state->lock);
	return block;
}

bool fake_node_has(struct fake_node *node, const qmla_key_t *key)
{
	return fake_node_block(node, key) != NULL;
}

void fake_node_remove(struct fake_node *node, const qmla_key_t *key)
{
	ProtobufCBinaryData binary = {sizeof(key->bytes), (uint8_t *)(uintptr_t)key->bytes};
	struct fake_slot *slot;

	pthread_mutex_lock(&node->state->lock);
	slot = find_slot(node->state, &binary);
	if (slot)
		slot->state = SLOT_FREE;
	pthread_mutex_unlock(&node->state->lock);
}

void fake_node_reserve(struct fake_node *node, const qmla_key_t *key)
{
	ProtobufCBinaryData binary = {sizeof(key->bytes), (uint8_t *)(uintptr_t)key->bytes};
	Qmla__V1__ReserveEntry entry;

	qmla__v1__reserve_entry__init(&entry);
	pthread_mutex_lock(&node->state->lock);
	must(reserve_one(node->state, &binary, &entry) == QMLA__V1__CODE__CODE_OK);
	pthread_mutex_unlock(&node->state->lock);
}
