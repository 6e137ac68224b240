/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/largest.h"

#include <math.h>
#include <stdlib.h>

struct qmw_largest {
	uint32_t channels, keep;
	uint64_t samples;
	uint32_t *held; /* [channels] */
	float *heaps;   /* [channels][keep]: each a heap with its smallest value in front */
};

qmla_status_t qmw_largest_create(uint32_t channels, uint64_t samples, struct qmw_largest **largest)
{
	struct qmw_largest *self = calloc(1, sizeof(*self));
	double above = (double)samples * (1 - QMW_LARGEST_QUANTILE);

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->channels = channels;
	self->samples = samples;
	self->keep = (uint32_t)ceil(above) + 2; /* the order statistics on both sides */
	self->held = calloc(channels, sizeof(*self->held));
	self->heaps = malloc((size_t)channels * self->keep * sizeof(*self->heaps));
	if (!self->held || !self->heaps) {
		qmw_largest_destroy(self);
		return QMLA_ERR_NO_MEMORY;
	}
	*largest = self;
	return QMLA_OK;
}

void qmw_largest_destroy(struct qmw_largest *largest)
{
	if (!largest)
		return;
	free(largest->heaps);
	free(largest->held);
	free(largest);
}

static void swap(float *a, float *b)
{
	float kept = *a;

	*a = *b;
	*b = kept;
}

static void sift_up(float *heap, uint32_t at)
{
	while (at > 0 && heap[at] < heap[(at - 1) / 2]) {
		swap(&heap[at], &heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
}

static void sift_down(float *heap, uint32_t count)
{
	uint32_t at = 0;

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < count && heap[child + 1] < heap[child])
			child++;
		if (child >= count || heap[at] <= heap[child])
			return;
		swap(&heap[at], &heap[child]);
		at = child;
	}
}

void qmw_largest_add(struct qmw_largest *largest, uint32_t channel, float value)
{
	float *heap = largest->heaps + (size_t)channel * largest->keep;
	uint32_t *held = &largest->held[channel];
	float magnitude = fabsf(value);

	if (*held < largest->keep) {
		heap[*held] = magnitude;
		sift_up(heap, (*held)++);
	} else if (magnitude > heap[0]) {
		heap[0] = magnitude;
		sift_down(heap, *held);
	}
}

static int compare_falling(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x < y) - (x > y);
}

double qmw_largest_percentile(const struct qmw_largest *largest, uint32_t channel)
{
	uint32_t held = largest->held[channel];
	double rank, below, value = 0;
	float *sorted;
	uint32_t upper;

	if (held == 0)
		return 0;
	sorted = malloc(held * sizeof(*sorted));
	if (!sorted)
		return 0;
	for (uint32_t i = 0; i < held; i++)
		sorted[i] = largest->heaps[(size_t)channel * largest->keep + i];
	qsort(sorted, held, sizeof(*sorted), compare_falling);
	/* Rank from the top: 0 is the largest. */
	rank = (1 - QMW_LARGEST_QUANTILE) * ((double)largest->samples - 1);
	upper = (uint32_t)rank;
	if (upper >= held)
		upper = held - 1;
	below = rank - upper;
	value = sorted[upper];
	if (upper + 1 < held)
		value += below * ((double)sorted[upper + 1] - sorted[upper]);
	free(sorted);
	return value;
}
