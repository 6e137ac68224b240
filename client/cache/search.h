/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Finds keys on the nodes that may hold them. Each key has candidates, best
 * first; a round asks every sought key's current candidate, all nodes at once;
 * what a node lacks (or what went wrong there) moves to the key's next one.
 * Used by one thread.
 */
#ifndef QML_SEARCH_H
#define QML_SEARCH_H

#include <stdbool.h>

#include "client/cache/client.h"
#include "client/cache/lease.h"

enum qml_phase {
	QML_SOUGHT, /**< some candidate has not been asked yet */
	QML_FOUND,  /**< and leased, when leases were asked for */
	QML_DONE,   /**< the caller is through with it */
	QML_LOST,   /**< no candidate is left; its status says why */
};

struct qml_hit {
	struct qml_node *node;
	struct qml_lease *lease; /**< NULL when none was asked for */
	uint64_t incarnation;
	uint64_t offset;
	uint64_t generation;
	uint64_t digest;
};

struct qml_search {
	qmla_client_t *client;
	const qmla_key_t *keys;
	size_t count;
	uint32_t lease_ms; /**< 0: presence only */
	bool prefix;       /**< only the run from the first key matters */
	qmc_time_t deadline;

	enum qml_phase *phases;  /**< [count] */
	qmla_status_t *statuses; /**< [count]: QMLA_OK when found */
	struct qml_hit *hits;    /**< [count], valid when found */
	struct qml_lease **leases;
	size_t lease_count;
	uint32_t nodes_asked;
	uint32_t renewals; /**< of leases given back already */

	size_t depth;
	uint16_t *candidates; /* [count][depth] */
	uint8_t *offered;     /* [count]: how many it has */
	uint8_t *asked;       /* [count]: the current one */
};

/** Takes @p client, @p keys, @p count, @p lease_ms, @p prefix and @p deadline from @p search. */
qmla_status_t qml_search_init(struct qml_search *search);

/** Asks until no candidate that matters is left or the deadline passes. */
qmla_status_t qml_search_settle(struct qml_search *search);

/** Leading keys that are found or done. */
size_t qml_search_run(const struct qml_search *search);

/** A found key was of no use (@p status says why): on to its next candidate. */
void qml_search_reject(struct qml_search *search, size_t index, qmla_status_t status);

/** Gives back the leases that cover no found key before @p end. */
void qml_search_release_past(struct qml_search *search, size_t end);

/** Renewals of its leases so far. */
uint32_t qml_search_renewals(const struct qml_search *search);

/** Gives back every lease, frees. */
void qml_search_fini(struct qml_search *search);

#endif /* QML_SEARCH_H */
