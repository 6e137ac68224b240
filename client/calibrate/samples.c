/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/samples.h"

#include <stdlib.h>

struct wave {
	const struct qmw_samples *samples;
	const uint32_t *indices; /* of this wave; NULL: consecutive from first */
	uint32_t first;
	qmw_sample_work work;
	void *user;
	qmla_status_t *status; /* [slots] */
};

uint32_t qmw_samples_slots(const struct qmw_samples *samples)
{
	return qmw_team_threads(samples->team);
}

static uint32_t index_of(const struct wave *wave, uint32_t slot)
{
	return wave->indices ? wave->indices[slot] : wave->first + slot;
}

static qmla_status_t run_slot(const struct wave *wave, uint32_t slot)
{
	const struct qmw_samples *samples = wave->samples;
	struct qmw_sample sample = {.index = index_of(wave, slot), .slot = slot};
	size_t count = (size_t)samples->length * samples->config->hidden;
	float *input = malloc(count * sizeof(*input));
	struct qmw_passage *passage = NULL;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (input)
		status = qmw_row_file_read(samples->inputs, sample.index, input);
	if (status == QMLA_OK)
		status = qmw_passage_create(samples->op, input, samples->length, &passage);
	free(input);
	sample.passage = passage;
	if (status == QMLA_OK)
		status = wave->work(wave->user, &sample);
	qmw_passage_destroy(passage);
	return status;
}

static void run_index(void *argument, uint32_t index, uint32_t thread)
{
	struct wave *wave = argument;

	(void)thread;
	wave->status[index] = run_slot(wave, index);
}

/* One wave; the first failure in order counts, whatever came first in time. */
static qmla_status_t run_wave(struct wave *wave, uint32_t count, qmw_sample_take take)
{
	qmw_team_run(wave->samples->team, count, run_index, wave);
	for (uint32_t i = 0; i < count; i++) {
		if (wave->status[i] != QMLA_OK)
			return wave->status[i];
		if (take)
			take(wave->user, index_of(wave, i), i);
	}
	return QMLA_OK;
}

static qmla_status_t each(const struct qmw_samples *samples, const uint32_t *indices,
			  uint32_t first, uint32_t count, qmw_sample_work work,
			  qmw_sample_take take, void *user)
{
	uint32_t slots = qmw_samples_slots(samples);
	struct wave wave = {.samples = samples, .work = work, .user = user};
	qmla_status_t status = QMLA_OK;

	wave.status = calloc(slots, sizeof(*wave.status));
	if (!wave.status)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t done = 0; status == QMLA_OK && done < count; done += slots) {
		uint32_t now = count - done < slots ? count - done : slots;

		if (samples->go_on && !samples->go_on(samples->user)) {
			status = QMLA_ERR_CANCELLED;
			break;
		}
		wave.indices = indices ? indices + done : NULL;
		wave.first = first + done;
		status = run_wave(&wave, now, take);
	}
	free(wave.status);
	return status;
}

qmla_status_t qmw_samples_each(const struct qmw_samples *samples, const uint32_t *indices,
			       uint32_t count, qmw_sample_work work, qmw_sample_take take,
			       void *user)
{
	return each(samples, indices, 0, count, work, take, user);
}

qmla_status_t qmw_samples_range(const struct qmw_samples *samples, uint32_t first, uint32_t count,
				qmw_sample_work work, qmw_sample_take take, void *user)
{
	return each(samples, NULL, first, count, work, take, user);
}

static qmla_status_t write_output(void *user, const struct qmw_sample *sample)
{
	struct qmw_samples *samples = user;
	size_t count = (size_t)samples->length * samples->config->hidden;
	float *output = malloc(count * sizeof(*output));
	qmla_status_t status;

	if (!output)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_passage_output(sample->passage, NULL, output);
	if (status == QMLA_OK)
		status = qmw_row_file_write(samples->outputs, sample->index, output);
	free(output);
	return status;
}

qmla_status_t qmw_samples_outputs(struct qmw_samples *samples, struct qmw_row_file *outputs)
{
	qmla_status_t status;

	samples->outputs = outputs;
	status = qmw_samples_range(samples, 0, samples->train + samples->held_out, write_output,
				   NULL, samples);
	if (status != QMLA_OK)
		samples->outputs = NULL;
	return status;
}
