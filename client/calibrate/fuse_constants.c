/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/fuse_constants.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/constants.h"
#include "client/model/safetensors_write.h"
#include "common/log.h"

#define COMPONENT "fuse"
#define ARRAYS    8u
#define NAME      48u

/* One array of one layer. */
struct array {
	const char *name;
	const double *values;
	uint64_t rows, columns; /* 0 columns: a vector */
};

static qmla_status_t refuse(const char *what, const char *value)
{
	qmc_error(COMPONENT, "%s '%.80s' cannot stand in quantmla.json", what, value ? value : "");
	return QMLA_ERR_INVALID_ARGUMENT;
}

static bool is_array(const char *text)
{
	json_t *value = json_loads(text, 0, NULL);
	bool array = json_is_array(value);

	json_decref(value);
	return array;
}

qmla_status_t qmw_fuse_constants_check(const struct qmw_fuse_job *job)
{
	const struct qmw_constants limits = {.version = 2};
	enum qmk_format format;

	if (!job->recipe || !job->recipe[0] || strlen(job->recipe) >= sizeof(limits.recipe))
		return refuse("the recipe", job->recipe);
	if (!job->method || !job->method[0] || strlen(job->method) >= sizeof(limits.method))
		return refuse("the method", job->method);
	if (!job->cache || qmk_format_parse(job->cache, &format))
		return refuse("the cache", job->cache);
	if (job->quantiser && strcmp(job->quantiser, "default") != 0 &&
	    strcmp(job->quantiser, "paper") != 0)
		return refuse("the quantiser", job->quantiser);
	if (job->figures && !is_array(job->figures))
		return refuse("the layers' figures, no JSON array:", job->figures);
	return QMLA_OK;
}

static bool has_scale(const struct qmw_fuse_constants *c)
{
	for (uint32_t i = 0; i < c->job->count; i++)
		if (c->job->layers[i].content_scale)
			return true;
	return false;
}

static json_t *describe(const struct qmw_fuse_constants *c)
{
	char fused[2 * QMC_SHA256_BYTES + 1], source[2 * QMC_SHA256_BYTES + 1];
	const struct qmw_fuse_job *job = c->job;
	json_t *root;

	qmc_hex_encode(c->report->digest, QMC_SHA256_BYTES, fused);
	qmc_hex_encode(c->report->source_digest, QMC_SHA256_BYTES, source);
	root = json_pack("{s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "version", 2, "recipe",
			 job->recipe, "method", job->method, "cache", job->cache, "quantiser",
			 job->quantiser ? job->quantiser : "default", "content_rotation",
			 "identity", "content_scale", has_scale(c) ? "cached" : "one",
			 "model_sha256", fused, "source_sha256", source);
	if (root && job->created_by)
		json_object_set_new(root, "created_by", json_string(job->created_by));
	if (root && job->figures)
		json_object_set_new(root, "layers", json_loads(job->figures, 0, NULL));
	return root;
}

static qmla_status_t write_json(const struct qmw_fuse_constants *c,
				const struct qmw_fuse_files *files)
{
	json_t *root = describe(c);
	char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER |
						     JSON_REAL_PRECISION(9))
			  : NULL;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	json_decref(root);
	if (text)
		status = qmw_fuse_files_write(files, "quantmla.json", text, strlen(text));
	free(text);
	return status;
}

/* @p scale: of the layer's latents, NULL when no layer has one. */
static uint32_t list_arrays(const struct qmw_transform *t, const double *scale,
			    struct array arrays[ARRAYS])
{
	uint64_t n = t->content_dim, r = t->rope_dim;
	const struct array all[ARRAYS] = {
		{"content_mean", t->content_mean, n, 0},
		{"rope_mean", t->rope_mean, r, 0},
		{"content_feedback", t->content_feedback, n, n},
		{"content_weight", t->content_weight, n, 0},
		{"rope_feedback", t->rope_feedback, r, r},
		{"rope_weight", t->rope_weight, r, 0},
		{"cross_feedback", t->cross_feedback, n, r},
		{"content_scale", scale, n, 0},
	};
	uint32_t count = 0;

	for (uint32_t k = 0; k < ARRAYS; k++)
		if (all[k].values)
			arrays[count++] = all[k];
	return count;
}

/* The scales of all layers, [layers][d_c], malloc'ed; *scales = NULL when none has one. */
static qmla_status_t collect_scales(const struct qmw_fuse_constants *c, double **scales)
{
	uint32_t n = c->config->content_dim;
	qmla_status_t status = QMLA_OK;

	*scales = NULL;
	if (!has_scale(c))
		return QMLA_OK;
	*scales = malloc((size_t)c->job->count * n * sizeof(**scales));
	if (!*scales)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < c->job->count && !status; i++)
		status = qmw_fuse_plan_scale(c->plan, i, *scales + (size_t)i * n);
	return status;
}

static qmla_status_t append(struct qmw_safetensors_writer *writer, const struct array *array)
{
	size_t count = (size_t)(array->rows * (array->columns ? array->columns : 1));
	float *values = malloc(count * sizeof(*values));
	qmla_status_t status;

	if (!values)
		return QMLA_ERR_NO_MEMORY;
	for (size_t i = 0; i < count; i++)
		values[i] = (float)array->values[i];
	status = qmw_safetensors_append(writer, values, count * sizeof(*values));
	free(values);
	return status;
}

/* Specs and arrays of all layers, one list each; returns their number. */
static uint32_t list_all(const struct qmw_fuse_constants *c, const double *scales,
			 struct array *arrays, struct qmw_tensor_spec *specs, char (*names)[NAME])
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < c->job->count; i++) {
		const double *scale = scales ? scales + (size_t)i * c->config->content_dim : NULL;
		uint32_t added = list_arrays(&c->job->layers[i], scale, arrays + count);

		for (uint32_t k = count; k < count + added; k++) {
			snprintf(names[k], NAME, "layers.%" PRIu32 ".%s", i, arrays[k].name);
			specs[k] = (struct qmw_tensor_spec){
				.name = names[k],
				.dtype = QMW_DTYPE_F32,
				.rank = arrays[k].columns ? 2 : 1,
				.shape = {arrays[k].rows, arrays[k].columns}};
		}
		count += added;
	}
	return count;
}

static qmla_status_t write_arrays(const struct array *arrays, const struct qmw_tensor_spec *specs,
				  uint32_t count, const struct qmw_fuse_files *files)
{
	struct qmw_safetensors_writer *writer = NULL;
	char *path = qmw_fuse_files_path(files, "quantmla.safetensors");
	qmla_status_t status =
		path ? qmw_safetensors_write(path, specs, count, &writer) : QMLA_ERR_NO_MEMORY;

	for (uint32_t k = 0; k < count && !status; k++)
		status = append(writer, &arrays[k]);
	if (!status)
		status = qmw_safetensors_finish(writer, NULL);
	qmw_safetensors_writer_destroy(writer);
	free(path);
	return status;
}

qmla_status_t qmw_fuse_constants_write(const struct qmw_fuse_constants *constants,
				       const struct qmw_fuse_files *files)
{
	size_t most = (size_t)constants->job->count * ARRAYS + 1;
	struct array *arrays = calloc(most, sizeof(*arrays));
	struct qmw_tensor_spec *specs = calloc(most, sizeof(*specs));
	char(*names)[NAME] = calloc(most, sizeof(*names));
	double *scales = NULL;
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (arrays && specs && names)
		status = collect_scales(constants, &scales);
	if (!status)
		status = write_arrays(arrays, specs,
				      list_all(constants, scales, arrays, specs, names), files);
	if (!status)
		status = write_json(constants, files);
	free(arrays);
	free(specs);
	free(names);
	free(scales);
	return status;
}
