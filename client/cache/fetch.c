/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/cache/calls.h"
#include "client/cache/client.h"
#include "client/cache/search.h"
#include "client/cache/transfer.h"
#include "common/log.h"
#include "kernels/block.h"

struct fetch {
	qmla_client_t *client;
	struct qml_search search;
	void *const *blocks;
	_Atomic uint64_t verify_ns;
	uint64_t bytes;
	uint64_t lookup_ns, transfer_ns;
	uint32_t corrupt;
};

/* One pass: every found block of the run, sorted by node. */
struct pass {
	struct fetch *fetch;
	struct qml_piece *pieces;
	struct qml_transfer *transfers;
	size_t piece_count, transfer_count;
	_Atomic size_t stop;
};

static qmla_status_t verify_block(const struct fetch *fetch, const struct qml_piece *piece)
{
	const struct qml_settings *settings = &fetch->client->settings;
	const struct qml_hit *hit = &fetch->search.hits[piece->index];
	struct qmk_block_info info;
	qmla_status_t status;

	memcpy(info.key, fetch->search.keys[piece->index].bytes, sizeof(info.key));
	memcpy(info.identity, settings->identity.bytes, sizeof(info.identity));
	info.generation = hit->generation;
	status = qmk_block_check(&settings->layout, &info, piece->local);
	if (status == QMLA_OK && qmk_block_digest(&settings->layout, piece->local) != hit->digest)
		status = QMLA_ERR_CORRUPT; /* whole, but not what was committed */
	return status;
}

static qmla_status_t block_landed(void *user, const struct qml_piece *piece)
{
	struct fetch *fetch = user;
	qmc_time_t begin = qmc_clock_now();
	qmla_status_t status = verify_block(fetch, piece);

	/* Relaxed: a figure, read when the lanes are over. */
	atomic_fetch_add_explicit(&fetch->verify_ns, (uint64_t)(qmc_clock_now() - begin),
				  memory_order_relaxed);
	return status;
}

static void add_piece(struct pass *pass, size_t index)
{
	struct fetch *fetch = pass->fetch;
	const struct qml_hit *hit = &fetch->search.hits[index];

	pass->pieces[pass->piece_count++] = (struct qml_piece){
		.index = index,
		.offset = hit->offset,
		.length = fetch->client->settings.layout.block_bytes,
		.local = fetch->blocks[index],
		.capability = qml_lease_capability(hit->lease),
		.lease = hit->lease,
	};
}

/* A transfer for the pieces of one node (and one life of it, seen first). */
static void add_transfer(struct pass *pass, struct qml_node *node, size_t run)
{
	struct qml_search *search = &pass->fetch->search;
	size_t first = pass->piece_count;

	for (size_t i = 0; i < run; i++) {
		if (search->phases[i] != QML_FOUND || search->hits[i].node != node)
			continue;
		if (pass->piece_count > first &&
		    search->hits[i].incarnation !=
			    search->hits[pass->pieces[first].index].incarnation)
			continue;
		add_piece(pass, i);
	}
	if (pass->piece_count == first)
		return;
	pass->transfers[pass->transfer_count++] = (struct qml_transfer){
		.node = node,
		.access = QMT_READ,
		.incarnation = search->hits[pass->pieces[first].index].incarnation,
		.pieces = pass->pieces + first,
		.count = pass->piece_count - first,
		.deadline = search->deadline,
		.landed = block_landed,
		.user = pass->fetch,
		.stop = &pass->stop,
	};
}

static bool is_bad_block(qmla_status_t status)
{
	return status == QMLA_ERR_CORRUPT || status == QMLA_ERR_STALE ||
	       status == QMLA_ERR_IDENTITY_MISMATCH || status == QMLA_ERR_LAYOUT_MISMATCH;
}

struct report {
	Qmla__V1__ReportRequest request;
	Qmla__V1__ReportItem item;
	Qmla__V1__ReportItem *items[1];
};

static void fill_report(struct fetch *fetch, const struct qml_piece *piece, struct report *report,
			struct qml_call *call)
{
	const struct qml_hit *hit = &fetch->search.hits[piece->index];

	qmla__v1__report_request__init(&report->request);
	qmla__v1__report_item__init(&report->item);
	qml_calls_point_keys(fetch->search.keys, &piece->index, 1, &report->item.key);
	report->item.generation = hit->generation;
	report->item.reason = piece->status == QMLA_ERR_STALE ? QMLA__V1__CODE__CODE_STALE
							      : QMLA__V1__CODE__CODE_CORRUPT;
	report->items[0] = &report->item;
	report->request.identity.data = fetch->client->settings.identity.bytes;
	report->request.identity.len = sizeof(fetch->client->settings.identity.bytes);
	report->request.incarnation = hit->incarnation;
	report->request.items = report->items;
	report->request.n_items = 1;
	call->node = hit->node;
	call->path = "/qmla.v1.Cache/Report";
	call->request = &report->request.base;
	call->response_type = &qmla__v1__report_response__descriptor;
}

/* Waits for the answers: the caller may publish the block again right away. */
static void report_bad(struct pass *pass, size_t bad)
{
	struct report *reports = calloc(bad, sizeof(*reports));
	struct qml_call *calls = calloc(bad, sizeof(*calls));
	size_t at = 0;

	for (size_t i = 0; reports && calls && i < pass->piece_count; i++) {
		const struct qml_piece *piece = &pass->pieces[i];

		if (!is_bad_block(piece->status))
			continue;
		qmc_warn_limited("client", "node %s gave a bad block (%s): reported, not used",
				 qml_node_name(pass->fetch->search.hits[piece->index].node),
				 qmla_status_name(piece->status));
		fill_report(pass->fetch, piece, &reports[at], &calls[at]);
		at++;
	}
	qml_calls_run(calls, at, pass->fetch->search.deadline);
	qml_calls_release(calls, at);
	free(calls);
	free(reports);
}

/* Takes the pieces' results into the search; true when all of them are there. */
static bool take_results(struct pass *pass)
{
	struct fetch *fetch = pass->fetch;
	size_t bad = 0;
	bool all = true;

	for (size_t i = 0; i < pass->piece_count; i++)
		bad += is_bad_block(pass->pieces[i].status);
	if (bad)
		report_bad(pass, bad);
	fetch->corrupt += (uint32_t)bad;
	for (size_t i = 0; i < pass->piece_count; i++) {
		const struct qml_piece *piece = &pass->pieces[i];

		if (piece->status == QMLA_OK) {
			fetch->search.phases[piece->index] = QML_DONE;
			fetch->bytes += piece->length;
			continue;
		}
		all = false;
		/* Cancelled: it was behind a failed one and is still there to be had. */
		if (piece->status != QMLA_ERR_CANCELLED)
			qml_search_reject(&fetch->search, piece->index, piece->status);
	}
	return all;
}

static qmla_status_t run_pass(struct fetch *fetch, size_t run, bool *all)
{
	struct pass pass = {.fetch = fetch};
	qmla_client_t *client = fetch->client;
	qmc_time_t begin = qmc_clock_now();

	atomic_init(&pass.stop, SIZE_MAX);
	pass.pieces = calloc(run, sizeof(*pass.pieces));
	pass.transfers = calloc(client->node_count, sizeof(*pass.transfers));
	if (!pass.pieces || !pass.transfers) {
		free(pass.pieces);
		free(pass.transfers);
		return QMLA_ERR_NO_MEMORY;
	}
	for (size_t n = 0; n < client->node_count; n++)
		add_transfer(&pass, client->nodes[n], run);
	qml_transfers_run(client->crew, pass.transfers, pass.transfer_count);
	fetch->transfer_ns += (uint64_t)(qmc_clock_now() - begin);
	*all = take_results(&pass);
	free(pass.transfers);
	free(pass.pieces);
	return QMLA_OK;
}

static size_t found_in(const struct qml_search *search, size_t run)
{
	size_t found = 0;

	for (size_t i = 0; i < run; i++)
		found += search->phases[i] == QML_FOUND;
	return found;
}

static size_t done_run(const struct qml_search *search)
{
	size_t run = 0;

	while (run < search->count && search->phases[run] == QML_DONE)
		run++;
	return run;
}

/* Each pass ends with a key lost or everything done: candidates are finite. */
static qmla_status_t fetch_passes(struct fetch *fetch)
{
	struct qml_search *search = &fetch->search;
	bool all = false;

	while (!all) {
		qmc_time_t begin = qmc_clock_now();
		qmla_status_t status = qml_search_settle(search);
		size_t run;

		fetch->lookup_ns += (uint64_t)(qmc_clock_now() - begin);
		if (status != QMLA_OK)
			return status;
		run = qml_search_run(search);
		qml_search_release_past(search, run);
		if (found_in(search, run) == 0)
			return QMLA_OK;
		status = run_pass(fetch, run, &all);
		if (status != QMLA_OK)
			return status;
	}
	return QMLA_OK;
}

static void fill_statuses(const struct qml_search *search, size_t prefix, qmla_status_t *statuses)
{
	for (size_t i = 0; i < search->count; i++) {
		if (i < prefix)
			statuses[i] = QMLA_OK;
		else if (search->phases[i] == QML_LOST)
			statuses[i] = search->statuses[i];
		else
			statuses[i] = QMLA_ERR_CANCELLED; /* behind the end of the run */
	}
}

static void fill_stats(const struct fetch *fetch, qmla_fetch_stats_t *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->bytes = fetch->bytes;
	stats->lookup_us = fetch->lookup_ns / QMC_NS_PER_US;
	stats->transfer_us = fetch->transfer_ns / QMC_NS_PER_US;
	stats->verify_us =
		atomic_load_explicit(&fetch->verify_ns, memory_order_relaxed) / QMC_NS_PER_US;
	stats->nodes = fetch->search.nodes_asked;
	stats->renewals = qml_search_renewals(&fetch->search);
	stats->corrupt = fetch->corrupt;
}

static qmla_status_t check_blocks(const qmla_client_t *client, const qmla_key_t *keys, size_t count,
				  void *const *blocks, const size_t *prefix)
{
	if (!prefix || (count && !blocks))
		return QMLA_ERR_INVALID_ARGUMENT;
	for (size_t i = 0; i < count; i++) {
		if (!blocks[i] || (uintptr_t)blocks[i] % QMK_ALIGN) {
			qmc_error("client", "block %zu is not at a multiple of %u bytes", i,
				  QMK_ALIGN);
			return QMLA_ERR_INVALID_ARGUMENT;
		}
	}
	return qml_client_check_keys(client, keys, count);
}

qmla_status_t qmla_client_fetch(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				void *const *blocks, uint32_t timeout_ms, size_t *prefix,
				qmla_status_t *statuses, qmla_fetch_stats_t *stats)
{
	struct fetch fetch = {.client = client, .blocks = blocks};
	qmla_status_t status = check_blocks(client, keys, count, blocks, prefix);

	if (status != QMLA_OK)
		return status;
	fetch.search = (struct qml_search){
		.client = client,
		.keys = keys,
		.count = count,
		.lease_ms = client->settings.lease_ms,
		.prefix = true,
		.deadline = qml_client_deadline(timeout_ms),
	};
	status = qml_search_init(&fetch.search);
	if (status != QMLA_OK)
		return status;
	status = fetch_passes(&fetch);
	if (status == QMLA_OK) {
		*prefix = done_run(&fetch.search);
		if (statuses)
			fill_statuses(&fetch.search, *prefix, statuses);
		if (stats)
			fill_stats(&fetch, stats);
	}
	qml_search_fini(&fetch.search);
	return status;
}
