/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/window.h"

#include <stdlib.h>
#include <string.h>

#include "client/cache/client.h"
#include "common/log.h"
#include "kernels/block.h"

#define WINDOW_BYTES   (UINT64_C(32) << 20)
#define WINDOW_KEYS    128
#define FULL_TRIES     8
#define RETRY_MS       50 /* when a full node gives no hint */
#define RETRY_MS_LIMIT 500

static qmla_status_t check_block(const qmla_client_t *client, const qmla_key_t *key,
				 const void *block)
{
	const struct qml_settings *settings = &client->settings;
	struct qmk_block_info info = {.generation = 0};

	if (!block)
		return QMLA_ERR_INVALID_ARGUMENT;
	memcpy(info.key, key->bytes, sizeof(info.key));
	memcpy(info.identity, settings->identity.bytes, sizeof(info.identity));
	return qmk_block_check_header(&settings->layout, &info, block);
}

static qmla_status_t check_blocks(const qmla_client_t *client, const qmla_key_t *keys, size_t count,
				  const void *const *blocks)
{
	qmla_status_t status = qml_client_check_keys(client, keys, count);

	if (status == QMLA_OK && count && !blocks)
		status = QMLA_ERR_INVALID_ARGUMENT;
	for (size_t i = 0; i < count && status == QMLA_OK; i++) {
		status = check_block(client, &keys[i], blocks[i]);
		if (status != QMLA_OK)
			qmc_error("client", "block %zu is not sealed for its key: %s", i,
				  qmla_status_text(status));
	}
	return status;
}

/* Another writer's block is as good once that writer commits. */
static bool is_settled(qmla_status_t status)
{
	return status == QMLA_OK || status == QMLA_ERR_ALREADY_EXISTS || status == QMLA_ERR_BUSY;
}

/* Or another try on the same one: not_found and permission mean that it wants to be connected anew.
 */
static bool is_worth_another_node(qmla_status_t status)
{
	return status == QMLA_ERR_UNAVAILABLE || status == QMLA_ERR_DEADLINE ||
	       status == QMLA_ERR_DRAINING || status == QMLA_ERR_PEER_RESTARTED ||
	       status == QMLA_ERR_NOT_FOUND || status == QMLA_ERR_PERMISSION;
}

static size_t window_keys(const qmla_client_t *client)
{
	uint64_t keys = WINDOW_BYTES / client->settings.layout.block_bytes;

	if (keys < 4)
		return 4;
	return keys < WINDOW_KEYS ? (size_t)keys : WINDOW_KEYS;
}

struct patience {
	unsigned moves; /* to another node, since something last went through */
	unsigned waits; /* for a full node, likewise */
};

/* True when the failure may pass: after the wait that it asks for, if any. */
static bool try_again(const struct qml_window *window, qmla_status_t failure,
		      struct patience *patience)
{
	uint64_t wait_ms = window->retry_after_ms ? window->retry_after_ms : RETRY_MS;
	qmc_time_t until;

	if (is_worth_another_node(failure))
		return ++patience->moves <= window->client->node_count &&
		       qmc_clock_left(window->deadline) > 0;
	if (failure != QMLA_ERR_RESOURCE_EXHAUSTED || ++patience->waits > FULL_TRIES)
		return false;
	wait_ms <<= patience->waits - 1;
	if (wait_ms > RETRY_MS_LIMIT)
		wait_ms = RETRY_MS_LIMIT;
	until = qmc_clock_after((int64_t)wait_ms * QMC_NS_PER_MS);
	if (until >= window->deadline)
		return false;
	qmc_clock_sleep_until(until);
	return true;
}

/* Sends window after window; at the first key that fails for good the chain ends. */
static qmla_status_t publish_chain(struct qml_window *window, size_t count)
{
	struct patience patience = {0};
	qmla_status_t *statuses = window->statuses;
	size_t most = window_keys(window->client);
	size_t at = 0;

	while (at < count) {
		qmla_status_t status;
		size_t end;

		window->first = at;
		window->count = count - at < most ? count - at : most;
		end = at + window->count;
		status = qml_window_run(window);
		if (status != QMLA_OK)
			return status;
		while (at < end && is_settled(statuses[at])) {
			at++;
			patience = (struct patience){0};
		}
		if (at == end)
			continue;
		if (try_again(window, statuses[at], &patience))
			continue;
		/* A block behind a hole would never be found: leave the rest out. */
		for (size_t i = at + 1; i < count; i++) {
			if (i >= end || !is_settled(statuses[i]))
				statuses[i] = statuses[at];
		}
		return statuses[at];
	}
	return QMLA_OK;
}

qmla_status_t qmla_client_publish(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				  const void *const *blocks, uint32_t timeout_ms,
				  qmla_status_t *statuses)
{
	struct qml_window window = {.client = client, .keys = keys, .blocks = blocks};
	qmla_status_t status = check_blocks(client, keys, count, blocks);

	if (status != QMLA_OK || count == 0)
		return status;
	window.deadline = qml_client_deadline(timeout_ms);
	window.statuses = calloc(count, sizeof(*window.statuses));
	if (!window.statuses)
		return QMLA_ERR_NO_MEMORY;
	status = publish_chain(&window, count);
	if (statuses)
		memcpy(statuses, window.statuses, count * sizeof(*statuses));
	free(window.statuses);
	return status;
}
