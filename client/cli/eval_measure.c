/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/eval_measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRECISION 8

static void set_real(json_t *row, const char *key, double value)
{
	json_object_set_new(row, key, isfinite(value) ? json_real(value) : json_null());
}

static void set_interval(json_t *row, const char *key, const struct qmw_interval *interval)
{
	if (isfinite(interval->low))
		json_object_set_new(row, key, json_pack("[f,f]", interval->low, interval->high));
}

/* Bytes that the packed format of a case takes, without headers; 0: it has none. */
static double page_bytes(const struct qmw_eval_case *c)
{
	const struct qmw_model_info *info = qmw_model_info(c->reader.model);
	bool paper = strcmp(c->quantiser, "paper") == 0;
	enum qmk_format format = c->study.format;
	struct qmk_layout layout;

	if (c->study.exact)
		return (c->study.float32 ? 4.0 : 2.0) * (info->content_dim + info->rope_dim);
	if (paper && format == QMK_FORMAT_C2R4)
		return 0;
	if (paper)
		format = QMK_FORMAT_PAPER_C4R4;
	if (qmk_layout_init(format, info->layers, info->content_dim, info->rope_dim, &layout))
		return 0;
	return (double)layout.page_bytes / QMK_PAGE_TOKENS;
}

static json_t *describe(const char *model, const struct qmw_eval_cases *cases,
			const struct qmw_eval_case *c)
{
	const struct qmw_eval_case *reference = qmw_eval_cases_reference(cases);
	const struct qmw_model_info *info = qmw_model_info(c->reader.model);
	json_t *row =
		json_pack("{s:s,s:s,s:s,s:s,s:s}", "model", model, "calibration", info->calibration,
			  "cache", c->cache, "protect", c->protect, "quantiser", c->quantiser);

	if (row && info->method[0])
		json_object_set_new(row, "method", json_string(info->method));
	if (row && qmw_eval_cases_arithmetic(cases) && c->study.exact)
		json_object_set_new(row, "arithmetic",
				    json_string(qmw_eval_cases_arithmetic(cases)));
	if (row && page_bytes(c) > 0)
		set_real(row, "bytes_per_token_layer", page_bytes(c));
	if (row && reference)
		json_object_set_new(row, "against", json_string(reference->cache));
	return row;
}

static void add_text(json_t *row, const struct qmw_eval_text *r)
{
	json_object_set_new(row, "sequences", json_integer(r->sequences));
	json_object_set_new(row, "positions", json_integer((json_int_t)r->positions));
	set_real(row, "bits_per_byte", r->bits_per_byte);
	if (!r->compared)
		return;
	set_real(row, "reference_bits_per_byte", r->reference_bits);
	set_real(row, "bits_per_byte_change", r->bits_per_byte - r->reference_bits);
	set_interval(row, "bits_per_byte_change_95", &r->bits_change_interval);
	set_real(row, "kl", r->kl);
	set_interval(row, "kl_95", &r->kl_interval);
	set_real(row, "top1", r->top1);
	set_interval(row, "top1_95", &r->top1_interval);
}

/* Cases' readers, and the reference's as the last of @p readers. */
static uint32_t list_readers(const struct qmw_eval_cases *cases, struct qmw_eval_reader *readers)
{
	const struct qmw_eval_case *reference = qmw_eval_cases_reference(cases);
	uint32_t count = qmw_eval_cases_count(cases);

	for (uint32_t i = 0; i < count; i++)
		readers[i] = qmw_eval_cases_at(cases, i)->reader;
	if (reference)
		readers[count++] = reference->reader;
	return count;
}

static qmla_status_t measure_text(const struct qmw_eval_cases *cases,
				  const struct qmw_eval_inputs *inputs, json_t **rows)
{
	struct qmw_eval_reader readers[QMW_EVAL_CASES_MAX + 1];
	struct qmw_eval_text results[QMW_EVAL_CASES_MAX];
	uint32_t count = qmw_eval_cases_count(cases);
	bool compared = list_readers(cases, readers) > count;
	qmla_status_t status =
		qmw_eval_texts(readers, count, compared ? &readers[count] : NULL,
			       inputs->text->data, inputs->text->bytes, &inputs->options, results);

	for (uint32_t i = 0; i < count && !status; i++)
		add_text(rows[i], &results[i]);
	return status;
}

static qmla_status_t measure_recall(const struct qmw_eval_cases *cases,
				    const struct qmw_eval_inputs *inputs, json_t **rows)
{
	struct qmw_eval_reader readers[QMW_EVAL_CASES_MAX + 1];
	struct qmw_eval_recall results[QMW_EVAL_CASES_MAX + 1];
	uint32_t count = qmw_eval_cases_count(cases), all = list_readers(cases, readers);
	qmla_status_t status = qmw_eval_recalls(readers, all, (const char *)inputs->recall->data,
						inputs->recall->bytes, &inputs->options, results);

	for (uint32_t i = 0; i < count && !status; i++) {
		json_object_set_new(rows[i], "recall_prompts", json_integer(results[i].prompts));
		json_object_set_new(rows[i], "recall_answers", json_integer(results[i].answers));
		set_real(rows[i], "recall", results[i].recall);
		if (all > count)
			set_real(rows[i], "reference_recall", results[count].recall);
	}
	return status;
}

static double ratio(double error, double energy)
{
	return energy > 0 ? error / energy : (double)NAN;
}

static json_t *describe_layer(const struct qmw_study_error *e)
{
	json_t *layer = json_object();

	set_real(layer, "output_nmse", ratio(e->output_error, e->output_energy));
	set_real(layer, "position_nmse", ratio(e->position_error, e->position_energy));
	set_real(layer, "content_nmse", ratio(e->content_error, e->content_energy));
	set_real(layer, "rope_nmse", ratio(e->rope_error, e->rope_energy));
	return layer;
}

static qmla_status_t measure_layers(const struct qmw_eval_case *c,
				    const struct qmw_eval_inputs *inputs, json_t *row)
{
	uint32_t count = qmw_model_info(c->reader.model)->layers;
	struct qmw_study_settings settings = c->study;
	const struct qmw_eval_reader reader = {c->reader.model, &settings};
	struct qmw_study_error *errors = calloc(count, sizeof(*errors));
	json_t *layers = json_array();
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	settings.compare = true;
	if (errors && layers)
		status = qmw_eval_layers(&reader, inputs->text->data, inputs->text->bytes,
					 &inputs->options, errors);
	for (uint32_t i = 0; i < count && !status; i++)
		json_array_append_new(layers, describe_layer(&errors[i]));
	if (!status)
		json_object_set(row, "layers", layers);
	json_decref(layers);
	free(errors);
	return status;
}

qmla_status_t qmw_eval_measure(const char *model, const struct qmw_eval_cases *cases,
			       const struct qmw_eval_inputs *inputs, json_t **rows)
{
	uint32_t count = qmw_eval_cases_count(cases);
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; i < count; i++) {
		rows[i] = describe(model, cases, qmw_eval_cases_at(cases, i));
		if (!rows[i])
			return QMLA_ERR_NO_MEMORY;
	}
	if (inputs->text)
		status = measure_text(cases, inputs, rows);
	for (uint32_t i = 0; i < count && inputs->text && inputs->layers && !status; i++)
		if (!qmw_eval_cases_at(cases, i)->study.exact)
			status = measure_layers(qmw_eval_cases_at(cases, i), inputs, rows[i]);
	if (!status && inputs->recall)
		status = measure_recall(cases, inputs, rows);
	return status;
}

static void print_layer(size_t index, json_t *layer)
{
	const char *name;
	json_t *value;

	printf("layer %zu:", index);
	json_object_foreach(layer, name, value)
	{
		printf("  %s %.3e", name, json_real_value(value));
	}
	puts("");
}

static void print_list(const char *key, const json_t *list)
{
	if (json_is_real(json_array_get(list, 0))) {
		printf("%-24s %.6f … %.6f\n", key, json_real_value(json_array_get(list, 0)),
		       json_real_value(json_array_get(list, 1)));
		return;
	}
	for (size_t i = 0; i < json_array_size(list); i++)
		print_layer(i, json_array_get(list, i));
}

static void print_row(json_t *row)
{
	const char *key;
	json_t *value;

	json_object_foreach(row, key, value)
	{
		if (json_is_real(value))
			printf("%-24s %.6f\n", key, json_real_value(value));
		else if (json_is_integer(value))
			printf("%-24s %" JSON_INTEGER_FORMAT "\n", key, json_integer_value(value));
		else if (json_is_array(value))
			print_list(key, value);
		else if (json_is_string(value))
			printf("%-24s %s\n", key, json_string_value(value));
	}
}

void qmw_eval_print(json_t *const *rows, uint32_t count, bool json)
{
	for (uint32_t i = 0; i < count; i++) {
		if (json) {
			json_dumpf(rows[i], stdout,
				   JSON_COMPACT | JSON_PRESERVE_ORDER |
					   JSON_REAL_PRECISION(PRECISION));
			puts("");
		} else {
			if (i > 0)
				puts("");
			print_row(rows[i]);
		}
	}
}
