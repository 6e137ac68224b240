/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/run.h"

#include <stdlib.h>

#include "client/calibrate/layer_state.h"
#include "common/clock.h"

#define LAYER  "layer-#.state"
#define OUTPUT "output.rows"

static void tell_learn(void *user, const char *path, uint32_t done, uint32_t of)
{
	struct qmw_run *run = user;

	qmw_run_tell(run, (struct qmw_calibrate_progress){.stage = QMW_STAGE_LEARN,
							  .cache_layer = run->at,
							  .path = path,
							  .done = done,
							  .of = of});
}

static bool tell_wave(void *user)
{
	struct qmw_run *run = user;

	return qmw_run_tell(run, (struct qmw_calibrate_progress){.stage = QMW_STAGE_LEARN,
								 .cache_layer = run->at});
}

static bool tell_layer(struct qmw_run *run, uint32_t layer, double seconds)
{
	return qmw_run_tell(run, (struct qmw_calibrate_progress){.stage = QMW_STAGE_LAYER,
								 .cache_layer = layer,
								 .done = layer + 1,
								 .of = run->layers,
								 .figures = &run->figures[layer],
								 .seconds = seconds});
}

static qmla_status_t layer_place(const struct qmw_run *run, uint32_t layer, char **path,
				 uint8_t tag[QMC_SHA256_BYTES])
{
	qmla_status_t status = qmw_workplace_tag(run->workplace, LAYER, layer, tag);

	if (status != QMLA_OK)
		return status;
	*path = qmw_workplace_path(run->workplace, LAYER, layer);
	return *path ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}

static qmla_status_t load_layer(struct qmw_run *run, uint32_t layer)
{
	uint8_t tag[QMC_SHA256_BYTES];
	char *path;
	qmla_status_t status = layer_place(run, layer, &path, tag);

	if (status != QMLA_OK)
		return status;
	status = qmw_layer_state_load(path, tag, &run->transforms[layer], &run->figures[layer]);
	free(path);
	if (status == QMLA_ERR_NOT_FOUND || status == QMLA_ERR_CORRUPT)
		return QMLA_OK;
	if (status != QMLA_OK)
		return status;
	run->known[layer] = true;
	run->continued++;
	return tell_layer(run, layer, 0) ? QMLA_OK : QMLA_ERR_CANCELLED;
}

static qmla_status_t save_layer(const struct qmw_run *run, uint32_t layer)
{
	uint8_t tag[QMC_SHA256_BYTES];
	char *path;
	qmla_status_t status = layer_place(run, layer, &path, tag);

	if (status != QMLA_OK)
		return status;
	status = qmw_layer_state_save(path, tag, &run->transforms[layer], &run->figures[layer]);
	free(path);
	return status;
}

/* The exact outputs that the paper's objective compares with. */
static qmla_status_t make_outputs(const struct qmw_run *run, struct qmw_samples *samples,
				  struct qmw_row_file **outputs)
{
	char *path = qmw_workplace_path(run->workplace, OUTPUT, 0);
	uint8_t tag[QMC_SHA256_BYTES];
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = qmw_workplace_tag(run->workplace, OUTPUT, samples->cache_layer, tag);
	if (status == QMLA_OK)
		status = qmw_row_file_create(path, tag, samples->train + samples->held_out,
					     (uint64_t)samples->length * samples->config->hidden,
					     outputs);
	if (status == QMLA_OK)
		status = qmw_samples_outputs(samples, *outputs);
	free(path);
	return status;
}

static qmla_status_t learn_layer(struct qmw_run *run, uint32_t layer,
				 const struct qmw_row_file *inputs)
{
	struct qmw_method_options options = run->job->method;
	struct qmw_samples samples = {.config = qmw_stream_config(run->stream),
				      .rope = qmw_stream_rope(run->stream),
				      .inputs = inputs,
				      .team = run->team,
				      .train = run->corpus.train,
				      .held_out = run->corpus.held_out,
				      .length = run->corpus.length,
				      .cache_layer = layer,
				      .seed = run->job->seed,
				      .go_on = tell_wave,
				      .user = run};
	struct qmw_row_file *outputs = NULL;
	struct qmw_operator *op = NULL;
	qmc_time_t since = qmc_clock_now();
	qmla_status_t status = qmw_operator_create(samples.config, samples.rope,
						   qmw_stream_attention(run->stream, layer), &op);

	samples.op = op;
	run->at = layer;
	options.progress = tell_learn;
	options.user = run;
	if (status == QMLA_OK && options.method == QMW_METHOD_PAPER)
		status = make_outputs(run, &samples, &outputs);
	if (status == QMLA_OK)
		status = qmw_method_learn(&samples, &options, &run->transforms[layer],
					  &run->figures[layer]);
	if (status == QMLA_OK)
		status = save_layer(run, layer);
	qmw_row_file_close(outputs);
	qmw_operator_destroy(op);
	if (status != QMLA_OK)
		return status;
	run->known[layer] = true;
	return tell_layer(run, layer, (double)(qmc_clock_now() - since) / QMC_NS_PER_S)
		       ? QMLA_OK
		       : QMLA_ERR_CANCELLED;
}

static bool span_known(const struct qmw_run *run, uint32_t decoder_layer)
{
	uint32_t first, count;

	qmw_stream_layer_span(run->stream, decoder_layer, &first, &count);
	for (uint32_t i = 0; i < count; i++)
		if (!run->known[first + i])
			return false;
	return true;
}

/* Walks one decoder layer and learns what of it is not known yet. */
static qmla_status_t do_decoder_layer(struct qmw_run *run, uint32_t decoder_layer)
{
	struct qmw_row_file *inputs[QMW_WALK_SUBLAYERS] = {NULL, NULL};
	bool known = span_known(run, decoder_layer);
	uint32_t first, count;
	qmla_status_t status = qmw_walk_layer(&run->walk, decoder_layer, known ? NULL : inputs);

	qmw_stream_layer_span(run->stream, decoder_layer, &first, &count);
	for (uint32_t i = 0; status == QMLA_OK && i < count; i++)
		if (!run->known[first + i])
			status = learn_layer(run, first + i, inputs[i]);
	for (uint32_t i = 0; i < QMW_WALK_SUBLAYERS; i++)
		qmw_row_file_close(inputs[i]);
	if (status == QMLA_OK)
		qmw_walk_leave(&run->walk, decoder_layer);
	return status;
}

qmla_status_t qmw_run_learn(struct qmw_run *run)
{
	uint32_t decoder_layers = run->walk.decoder_layers, done = 0, start;
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; status == QMLA_OK && i < run->layers; i++)
		status = load_layer(run, i);
	while (status == QMLA_OK && done < decoder_layers && span_known(run, done))
		done++;
	if (status != QMLA_OK || done == decoder_layers)
		return status;
	/* The nearest hidden states in front of what is to be learned. */
	for (start = done; start > 0 && !qmw_walk_has(&run->walk, start); start--)
		;
	if (start == 0 && !qmw_walk_has(&run->walk, 0))
		status = qmw_walk_begin(&run->walk);
	for (uint32_t i = start; status == QMLA_OK && i < decoder_layers; i++)
		status = do_decoder_layer(run, i);
	return status;
}
