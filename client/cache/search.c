/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/search.h"

#include <stdlib.h>
#include <string.h>

#include "client/cache/round.h"

/* The best usable nodes; what a better one that is left out might hold is unknown, not absent. */
static void choose_candidates(struct qml_search *search, size_t index, size_t out_count)
{
	qmla_client_t *client = search->client;
	uint16_t ranked[QML_NODES_MAX];
	uint16_t *chosen = search->candidates + index * search->depth;
	size_t depth = search->depth + out_count, offered = 0;

	if (depth > client->node_count)
		depth = client->node_count;
	qml_place_rank(client->places, client->node_count, &search->keys[index], depth, ranked);
	search->statuses[index] = QMLA_ERR_NOT_FOUND;
	for (size_t i = 0; i < depth && offered < search->depth; i++) {
		qmla_status_t health = qml_node_health(client->nodes[ranked[i]]);

		if (health == QMLA_OK)
			chosen[offered++] = ranked[i];
		else if (i < search->depth)
			search->statuses[index] = health;
	}
	search->offered[index] = (uint8_t)offered;
	search->phases[index] = offered ? QML_SOUGHT : QML_LOST;
}

qmla_status_t qml_search_init(struct qml_search *search)
{
	qmla_client_t *client = search->client;
	size_t n = search->count ? search->count : 1;
	size_t out_count = 0;

	search->depth = qml_client_depth(client);
	search->phases = calloc(n, sizeof(*search->phases));
	search->statuses = calloc(n, sizeof(*search->statuses));
	search->hits = calloc(n, sizeof(*search->hits));
	search->candidates = calloc(n * search->depth, sizeof(*search->candidates));
	search->offered = calloc(n, 1);
	search->asked = calloc(n, 1);
	search->leases = NULL;
	search->lease_count = 0;
	search->nodes_asked = 0;
	search->renewals = 0;
	if (!search->phases || !search->statuses || !search->hits || !search->candidates ||
	    !search->offered || !search->asked) {
		qml_search_fini(search);
		return QMLA_ERR_NO_MEMORY;
	}
	for (size_t i = 0; i < client->node_count; i++)
		out_count += !qml_node_usable(client->nodes[i]);
	for (size_t i = 0; i < search->count; i++)
		choose_candidates(search, i, out_count);
	return QMLA_OK;
}

void qml_search_fini(struct qml_search *search)
{
	for (size_t i = 0; i < search->lease_count; i++)
		qml_lease_release(search->leases[i], search->client->background);
	free(search->leases);
	free(search->phases);
	free(search->statuses);
	free(search->hits);
	free(search->candidates);
	free(search->offered);
	free(search->asked);
}

size_t qml_search_run(const struct qml_search *search)
{
	size_t run = 0;

	while (run < search->count &&
	       (search->phases[run] == QML_FOUND || search->phases[run] == QML_DONE))
		run++;
	return run;
}

void qml_search_reject(struct qml_search *search, size_t index, qmla_status_t status)
{
	/* "Not there" on a second node does not undo that the first could not be asked. */
	if (status != QMLA_ERR_NOT_FOUND || search->statuses[index] == QMLA_OK)
		search->statuses[index] = status;
	search->asked[index]++;
	search->phases[index] =
		search->asked[index] < search->offered[index] ? QML_SOUGHT : QML_LOST;
}

static void release(struct qml_search *search, struct qml_lease *lease)
{
	search->renewals += qml_lease_renewals(lease);
	qml_lease_release(lease, search->client->background);
}

uint32_t qml_search_renewals(const struct qml_search *search)
{
	uint32_t renewals = search->renewals;

	for (size_t i = 0; i < search->lease_count; i++)
		renewals += qml_lease_renewals(search->leases[i]);
	return renewals;
}

void qml_search_release_past(struct qml_search *search, size_t end)
{
	size_t kept = 0;

	for (size_t i = 0; i < search->lease_count; i++) {
		bool used = false;

		for (size_t k = 0; k < end && !used; k++)
			used = search->phases[k] == QML_FOUND &&
			       search->hits[k].lease == search->leases[i];
		if (used)
			search->leases[kept++] = search->leases[i];
		else
			release(search, search->leases[i]);
	}
	search->lease_count = kept;
}

/* A prefix ends at the first key that nobody has: nothing after it is worth a question. */
static size_t limit_of(const struct qml_search *search)
{
	size_t limit = 0;

	if (!search->prefix)
		return search->count;
	while (limit < search->count && search->phases[limit] != QML_LOST)
		limit++;
	return limit;
}

static void give_up(struct qml_search *search)
{
	for (size_t i = 0; i < search->count; i++) {
		if (search->phases[i] != QML_SOUGHT)
			continue;
		search->phases[i] = QML_LOST;
		search->statuses[i] = QMLA_ERR_DEADLINE;
	}
}

qmla_status_t qml_search_settle(struct qml_search *search)
{
	bool asked = true;

	while (asked) {
		qmla_status_t status;

		if (qmc_clock_left(search->deadline) == 0) {
			give_up(search);
			return QMLA_OK;
		}
		status = qml_round_run(search, limit_of(search), &asked);
		if (status != QMLA_OK)
			return status;
	}
	return QMLA_OK;
}
