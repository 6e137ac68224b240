/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/sample.h"

#include <math.h>
#include <stdbool.h>

#include "client/model/numeric.h"
#include "common/splitmix.h"

/* A double in [0, 1). */
static double draw(struct qmw_sampler *sampler)
{
	return (double)(qmc_splitmix_next(&sampler->state) >> 11) * 0x1p-53;
}

/* Logits to unnormalised probabilities; returns their sum. NaN counts as impossible. */
static double exponentiate(float *logits, uint32_t vocab, float temperature)
{
	float max = logits[qmw_argmax(logits, vocab)];
	double sum = 0;

	for (uint32_t i = 0; i < vocab; i++) {
		float p = expf((logits[i] - max) / temperature);

		logits[i] = isnan(p) ? 0 : p;
		sum += logits[i];
	}
	return sum;
}

/* Before b in the order of choice: more probable, then the lower id. */
static bool precedes(const float *p, uint32_t a, uint32_t b)
{
	return p[a] != p[b] ? p[a] > p[b] : a < b;
}

/* Heap of indices with the first in the order of choice on top. */
static void sift_down(const float *p, uint32_t *heap, uint32_t count, uint32_t at)
{
	for (;;) {
		uint32_t child = 2 * at + 1, swap;

		if (child >= count)
			return;
		if (child + 1 < count && precedes(p, heap[child + 1], heap[child]))
			child++;
		if (!precedes(p, heap[child], heap[at]))
			return;
		swap = heap[at];
		heap[at] = heap[child];
		heap[child] = swap;
		at = child;
	}
}

/*
 * Moves the smallest set of most probable tokens whose mass reaches the target
 * to the end of @p order; returns its size and its mass. A heap, since the set is
 * small beside the vocabulary.
 */
static uint32_t select_nucleus(const float *p, uint32_t *order, uint32_t vocab, double target,
			       double *mass)
{
	uint32_t left = vocab;

	for (uint32_t i = 0; i < vocab; i++)
		order[i] = i;
	for (uint32_t i = vocab / 2; i-- > 0;)
		sift_down(p, order, vocab, i);
	*mass = 0;
	while (left > 0 && (left == vocab || *mass < target)) {
		uint32_t best = order[0];

		order[0] = order[--left];
		order[left] = best;
		*mass += p[best];
		sift_down(p, order, left, 0);
	}
	return vocab - left;
}

static uint32_t sample_nucleus(struct qmw_sampler *sampler, const float *p, uint32_t *order,
			       uint32_t vocab, double sum)
{
	double mass, target;
	uint32_t count = select_nucleus(p, order, vocab, sampler->top_p * sum, &mass);

	target = draw(sampler) * mass;
	for (uint32_t i = 0; i + 1 < count; i++) {
		target -= p[order[vocab - 1 - i]];
		if (target < 0)
			return order[vocab - 1 - i];
	}
	return order[vocab - count];
}

static uint32_t sample_all(struct qmw_sampler *sampler, const float *p, uint32_t vocab, double sum)
{
	double target = draw(sampler) * sum;
	uint32_t last = 0;

	for (uint32_t i = 0; i < vocab; i++) {
		if (p[i] <= 0)
			continue;
		last = i;
		target -= p[i];
		if (target < 0)
			break;
	}
	return last;
}

uint32_t qmw_sample(struct qmw_sampler *sampler, float *logits, uint32_t *scratch, uint32_t vocab)
{
	double sum;

	if (!(sampler->temperature > 0))
		return qmw_argmax(logits, vocab);
	sum = exponentiate(logits, vocab, sampler->temperature);
	if (sampler->top_p > 0 && sampler->top_p < 1)
		return sample_nucleus(sampler, logits, scratch, vocab, sum);
	return sample_all(sampler, logits, vocab, sum);
}
