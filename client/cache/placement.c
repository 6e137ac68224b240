/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/placement.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#define PLACE_DEPTH_MAX 256

uint64_t qml_place_seed(const char *name)
{
	return XXH64(name, strlen(name), 0);
}

double qml_place_score(const struct qml_place *place, const qmla_key_t *key)
{
	uint64_t hash = XXH64(key->bytes, sizeof(key->bytes), place->seed);
	double u = ((double)(hash >> 11) + 0.5) * 0x1p-53;

	return -place->weight / log(u);
}

static bool outranks(double score, uint64_t seed, double other_score, uint64_t other_seed)
{
	return score > other_score || (!(score < other_score) && seed < other_seed);
}

void qml_place_rank(const struct qml_place *places, size_t count, const qmla_key_t *key,
		    size_t depth, uint16_t *ranked)
{
	double scores[PLACE_DEPTH_MAX];
	size_t held = 0;

	if (count == 1 && depth == 1) {
		ranked[0] = 0;
		return;
	}
	for (size_t i = 0; i < count; i++) {
		double score = qml_place_score(&places[i], key);
		size_t at = held;

		while (at > 0 &&
		       outranks(score, places[i].seed, scores[at - 1], places[ranked[at - 1]].seed))
			at--;
		if (at == depth)
			continue;
		if (held < depth)
			held++;
		memmove(&scores[at + 1], &scores[at], (held - at - 1) * sizeof(scores[0]));
		memmove(&ranked[at + 1], &ranked[at], (held - at - 1) * sizeof(ranked[0]));
		scores[at] = score;
		ranked[at] = (uint16_t)i;
	}
}
