/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/held_out.h"

#include <stdlib.h>
#include <string.h>

/* Sums over sequences of one storage. */
struct sums {
	double content, rope, both, score, score_energy;
};

struct pass {
	const struct qmw_samples *samples;
	const struct qmw_stored *const *stored;
	uint32_t count;
	struct sums *sums; /* [slots + 1][count]; the last one is the total */
	double *energy;    /* [slots + 1] */
};

struct rows {
	float *content, *key, *exact, *output;
	size_t outputs;
};

static double energy_of(const float *values, size_t count)
{
	double sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += (double)values[i] * values[i];
	return sum;
}

static qmla_status_t output_error(const struct qmw_sample *sample, const struct rows *rows,
				  bool content, bool key, double *sum)
{
	const struct qmw_rows cache = {.content = content ? rows->content : NULL,
				       .key = key ? rows->key : NULL};
	qmla_status_t status = qmw_passage_output(sample->passage, &cache, rows->output);

	for (size_t i = 0; status == QMLA_OK && i < rows->outputs; i++) {
		double miss = (double)rows->output[i] - rows->exact[i];

		*sum += miss * miss;
	}
	return status;
}

static qmla_status_t measure_one(const struct qmw_stored *stored, const struct qmw_sample *sample,
				 const struct rows *rows, struct sums *sums)
{
	qmla_status_t status;

	memset(sums, 0, sizeof(*sums));
	status = qmw_stored_rows(stored, sample->passage, rows->content, NULL);
	if (status == QMLA_OK)
		status = output_error(sample, rows, true, false, &sums->content);
	if (status == QMLA_OK)
		status = qmw_stored_rows(stored, sample->passage, NULL, rows->key);
	if (status == QMLA_OK)
		status = qmw_passage_positional(sample->passage, rows->key, &sums->score,
						&sums->score_energy, NULL);
	if (status == QMLA_OK)
		status = output_error(sample, rows, false, true, &sums->rope);
	/* Content may take back what the RoPE codes did: both again, together. */
	if (status == QMLA_OK)
		status = qmw_stored_rows(stored, sample->passage, rows->content, rows->key);
	if (status == QMLA_OK)
		status = output_error(sample, rows, true, true, &sums->both);
	return status;
}

static qmla_status_t measure(void *user, const struct qmw_sample *sample)
{
	const struct pass *pass = user;
	const struct qmw_config *config = pass->samples->config;
	size_t n = pass->samples->length, outputs = n * config->hidden;
	size_t width = config->content_dim + config->rope_dim;
	float *all = malloc((n * width + 2 * outputs) * sizeof(*all));
	struct rows rows = {.content = all, .outputs = outputs};
	qmla_status_t status;

	if (!all)
		return QMLA_ERR_NO_MEMORY;
	rows.key = all + n * config->content_dim;
	rows.exact = rows.key + n * config->rope_dim;
	rows.output = rows.exact + outputs;
	status = qmw_passage_output(sample->passage, NULL, rows.exact);
	if (status == QMLA_OK)
		pass->energy[sample->slot] = energy_of(rows.exact, outputs);
	for (uint32_t i = 0; status == QMLA_OK && i < pass->count; i++)
		status = measure_one(pass->stored[i], sample, &rows,
				     &pass->sums[sample->slot * pass->count + i]);
	free(all);
	return status;
}

static void take(void *user, uint32_t index, uint32_t slot)
{
	struct pass *pass = user;
	uint32_t slots = qmw_samples_slots(pass->samples);

	(void)index;
	pass->energy[slots] += pass->energy[slot];
	for (uint32_t i = 0; i < pass->count; i++) {
		const struct sums *from = &pass->sums[slot * pass->count + i];
		struct sums *to = &pass->sums[slots * pass->count + i];

		to->content += from->content;
		to->rope += from->rope;
		to->both += from->both;
		to->score += from->score;
		to->score_energy += from->score_energy;
	}
}

static double share(double error, double energy)
{
	return energy > 0 ? error / energy : 0;
}

qmla_status_t qmw_held_out_measure(const struct qmw_samples *samples,
				   const struct qmw_stored *const *stored, uint32_t count,
				   struct qmw_held_out *errors)
{
	uint32_t slots = qmw_samples_slots(samples);
	struct pass pass = {.samples = samples, .stored = stored, .count = count};
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	pass.sums = calloc((size_t)(slots + 1) * count, sizeof(*pass.sums));
	pass.energy = calloc(slots + 1, sizeof(*pass.energy));
	if (pass.sums && pass.energy)
		status = qmw_samples_range(samples, samples->train, samples->held_out, measure,
					   take, &pass);
	for (uint32_t i = 0; status == QMLA_OK && i < count; i++) {
		const struct sums *sum = &pass.sums[slots * count + i];
		double energy = pass.energy[slots];

		errors[i] = (struct qmw_held_out){
			.content = share(sum->content, energy),
			.rope = share(sum->rope, energy),
			.both = share(sum->both, energy),
			.score = share(sum->score, sum->score_energy),
		};
	}
	free(pass.energy);
	free(pass.sums);
	return status;
}
