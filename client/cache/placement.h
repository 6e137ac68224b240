/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Which nodes hold a key: weighted rendezvous hashing. For a node with name n and
 * weight w, and a key k of 16 bytes:
 *
 *   seed  = XXH64(n, seed 0)
 *   u     = ((XXH64(k, seed) >> 11) + 1/2) / 2^53      in (0, 1)
 *   score = -w / ln u
 *
 * and the nodes are ranked by falling score, ties by rising seed. A node gets a
 * share w / sum(w) of the keys, and when one comes or goes only its own share
 * moves (Schindelhauer and Schomaker 2005; draft-ietf-bess-weighted-hrw).
 */
#ifndef QML_PLACEMENT_H
#define QML_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/cache.h>

struct qml_place {
	uint64_t seed;
	double weight; /**< > 0 */
};

/** Seed of a node's name. */
uint64_t qml_place_seed(const char *name);

/** Score of a node for a key; see above. */
double qml_place_score(const struct qml_place *place, const qmla_key_t *key);

/**
 * Indices of the @p depth best of @p count nodes for @p key, best first.
 * @p depth is at most @p count; O(count · depth), no allocation.
 */
void qml_place_rank(const struct qml_place *places, size_t count, const qmla_key_t *key,
		    size_t depth, uint16_t *ranked);

#endif /* QML_PLACEMENT_H */
