/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Six significant digits: enough to compare, and the same text on every machine that got
 * the same number. */
static json_t *number(double value)
{
	char text[32];

	if (!isfinite(value))
		return json_null();
	snprintf(text, sizeof(text), "%.6g", value);
	return json_real(strtod(text, NULL));
}

static void add_path(json_t *root, const char *name, double before, double after)
{
	json_t *pair = json_object();

	json_object_set_new(pair, "before", number(before));
	json_object_set_new(pair, "after", number(after));
	json_object_set_new(root, name, pair);
}

static void add_learned(json_t *root, const char *name, const struct qmw_learn_result *result)
{
	json_t *object = json_object();

	json_object_set_new(object, "alpha", number(result->alpha));
	json_object_set_new(object, "plain", number(result->plain));
	json_object_set_new(object, "initial", number(result->initial));
	json_object_set_new(object, "best", number(result->best));
	json_object_set_new(object, "step", json_integer(result->at_step));
	json_object_set_new(root, name, object);
}

json_t *qmw_figures_json(enum qmw_method method, const struct qmw_layer_figures *f)
{
	json_t *root = json_object();

	json_object_set_new(root, "calibration_tokens", json_integer((json_int_t)f->tokens));
	add_path(root, "content_output_nmse", f->before.content, f->after.content);
	add_path(root, "rope_output_nmse", f->before.rope, f->after.rope);
	add_path(root, "rope_score_nmse", f->before.score, f->after.score);
	add_path(root, "output_nmse", f->before.both, f->after.both);
	if (method == QMW_METHOD_PAPER) {
		add_learned(root, "content_learning", &f->content);
		add_learned(root, "rope_learning", &f->rope);
	}
	if (method != QMW_METHOD_DEFAULT)
		return root;
	json_object_set_new(root, "content_mean_share", number(f->content_mean_share));
	json_object_set_new(root, "rope_mean_share", number(f->rope_mean_share));
	json_object_set_new(root, "content_sensitivity", number(f->content_sensitivity));
	json_object_set_new(root, "rope_sensitivity", number(f->rope_sensitivity));
	json_object_set_new(root, "damping", number(f->damping));
	add_path(root, "rotation_loss", f->rotation_before, f->rotation_after);
	json_object_set_new(root, "content_condition", number(f->content_condition));
	json_object_set_new(root, "rope_condition", number(f->rope_condition));
	return root;
}

json_t *qmw_figures_array(enum qmw_method method, const struct qmw_layer_figures *figures,
			  uint32_t count)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < count; i++)
		json_array_append_new(array, qmw_figures_json(method, &figures[i]));
	return array;
}
