/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/constants.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/checkpoint.h"
#include "client/model/file.h"
#include "client/model/safetensors.h"
#include "common/log.h"

#define COMPONENT  "model"
#define JSON_NAME  "quantmla.json"
#define DATA_NAME  "quantmla.safetensors"
#define JSON_LIMIT ((size_t)16 << 20)
#define REMEDY                                                                                     \
	"make the constants again for this checkpoint, or remove " JSON_NAME " to run without"

static qmla_status_t parse_rotation(const char *name, enum qmw_rotation *rotation)
{
	static const char *const names[] = {"identity", "hadamard", "matrix"};

	for (int i = 0; name && i < 3; i++) {
		if (strcmp(name, names[i]) == 0) {
			*rotation = (enum qmw_rotation)i;
			return QMLA_OK;
		}
	}
	return QMLA_ERR_FORMAT;
}

static bool parse_digest(const json_t *root, const char *key, uint8_t digest[QMC_SHA256_BYTES])
{
	const char *text = json_string_value(json_object_get(root, key));

	return text && strlen(text) == 2 * (size_t)QMC_SHA256_BYTES &&
	       qmc_hex_decode(text, digest, QMC_SHA256_BYTES) == QMLA_OK;
}

static qmla_status_t parse_quantiser(const char *name, enum qmw_quantiser *quantiser)
{
	bool paper = name && strcmp(name, "paper") == 0;

	if (!paper && (!name || strcmp(name, "default") != 0))
		return QMLA_ERR_FORMAT;
	*quantiser = paper ? QMW_QUANTISER_PAPER : QMW_QUANTISER_DEFAULT;
	return QMLA_OK;
}

/* What version 2 adds. */
static const char *parse_second(const json_t *root, struct qmw_constants *parsed)
{
	const char *method = json_string_value(json_object_get(root, "method"));
	const char *cache = json_string_value(json_object_get(root, "cache"));
	const char *scale = json_string_value(json_object_get(root, "content_scale"));

	if (!method || !method[0])
		return "\"method\" is missing or no string";
	if (!cache || qmk_format_parse(cache, &parsed->format))
		return "\"cache\" is not \"c4r4\", \"c2r4\" or another packed format";
	if (parse_quantiser(json_string_value(json_object_get(root, "quantiser")),
			    &parsed->quantiser))
		return "\"quantiser\" is not \"default\" or \"paper\"";
	if (!scale || (strcmp(scale, "one") != 0 && strcmp(scale, "cached") != 0))
		return "\"content_scale\" is not \"one\" or \"cached\"";
	if (!parse_digest(root, "source_sha256", parsed->source_digest))
		return "\"source_sha256\" is not 64 hexadecimal digits";
	if (parsed->rotation != QMW_ROTATION_IDENTITY)
		return "\"content_rotation\" is not \"identity\": version 2 is of fused weights";
	parsed->scaled = strcmp(scale, "cached") == 0;
	snprintf(parsed->method, sizeof(parsed->method), "%s", method);
	return NULL;
}

static const char *parse_fields(const json_t *root, struct qmw_constants *parsed)
{
	const json_t *version = json_object_get(root, "version");
	const char *recipe = json_string_value(json_object_get(root, "recipe"));
	const char *rotation = json_string_value(json_object_get(root, "content_rotation"));

	if (!json_is_integer(version) || json_integer_value(version) < 1 ||
	    json_integer_value(version) > 2)
		return "\"version\" is neither 1 nor 2: made by a newer or older program";
	if (!recipe || !recipe[0])
		return "\"recipe\" is missing or no string";
	if (parse_rotation(rotation, &parsed->rotation))
		return "\"content_rotation\" is not \"identity\", \"hadamard\" or \"matrix\"";
	if (!parse_digest(root, "model_sha256", parsed->model_digest))
		return "\"model_sha256\" is not 64 hexadecimal digits";
	parsed->version = (uint32_t)json_integer_value(version);
	snprintf(parsed->recipe, sizeof(parsed->recipe), "%s", recipe);
	return parsed->version == 2 ? parse_second(root, parsed) : NULL;
}

qmla_status_t qmw_constants_parse(const char *text, size_t length, const char *label,
				  struct qmw_constants *constants)
{
	struct qmw_constants parsed = {.present = true};
	json_error_t error;
	json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
	const char *wrong;

	if (!json_is_object(root)) {
		qmc_error(COMPONENT, "%s: line %d: %s", label, root ? 1 : error.line,
			  root ? "is no JSON object" : error.text);
		json_decref(root);
		return QMLA_ERR_FORMAT;
	}
	wrong = parse_fields(root, &parsed);
	json_decref(root);
	if (wrong) {
		qmc_error(COMPONENT, "%s: %s", label, wrong);
		return QMLA_ERR_FORMAT;
	}
	*constants = parsed;
	return QMLA_OK;
}

enum form { FORM_ANY, FORM_POSITIVE, FORM_UNIT_LOWER, FORM_ORTHOGONAL };

static const char *check_positive(const float *values, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!(values[i] > 0))
			return "holds a value that is not positive";
	return NULL;
}

static const char *check_unit_lower(const float *a, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		for (size_t j = i; j < n; j++)
			if (a[i * n + j] != (i == j ? 1.0f : 0.0f))
				return "is not unit lower triangular";
	}
	return NULL;
}

static const char *check_orthogonal(const float *a, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		for (size_t j = 0; j <= i; j++) {
			double dot = 0;

			for (size_t k = 0; k < n; k++)
				dot += (double)a[i * n + k] * a[j * n + k];
			if (fabs(dot - (i == j)) > 1e-3)
				return "is not orthogonal";
		}
	}
	return NULL;
}

static const char *check_form(enum form form, const float *values, size_t rows, size_t columns)
{
	switch (form) {
	case FORM_POSITIVE:
		return check_positive(values, rows * (columns ? columns : 1));
	case FORM_UNIT_LOWER:
		return check_unit_lower(values, rows);
	case FORM_ORTHOGONAL:
		return check_orthogonal(values, rows);
	default:
		return NULL;
	}
}

/* One optional array of one layer. */
static qmla_status_t read_array(const struct qmw_safetensors *file, uint32_t layer,
				const char *what, uint64_t rows, uint64_t columns, enum form form,
				float **out)
{
	const char *path = qmw_safetensors_path(file), *wrong;
	const struct qmw_tensor *tensor;
	qmla_status_t status;
	char name[64];
	float *values;

	snprintf(name, sizeof(name), "layers.%" PRIu32 ".%s", layer, what);
	tensor = qmw_safetensors_find(file, name);
	if (!tensor)
		return QMLA_OK;
	status = qmw_tensor_check_shape(tensor, path, rows, columns);
	if (status)
		return status;
	values = malloc(tensor->elements * sizeof(*values) + 1);
	if (!values)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_tensor_to_float(tensor, path, values);
	wrong = status ? NULL : check_form(form, values, rows, columns);
	if (wrong) {
		qmc_error(COMPONENT, "%s: tensor %s %s; " REMEDY, path, name, wrong);
		status = QMLA_ERR_FORMAT;
	}
	if (status) {
		free(values);
		return status;
	}
	*out = values;
	return QMLA_OK;
}

static qmla_status_t read_layer(const struct qmw_safetensors *file, uint32_t i,
				const struct qmw_config *config, struct qmw_layer_constants *l)
{
	uint64_t c = config->content_dim, r = config->rope_dim;
	const struct {
		const char *name;
		uint64_t rows, columns;
		enum form form;
		float **out;
	} arrays[] = {
		{"content_mean", c, 0, FORM_ANY, &l->content_mean},
		{"rope_mean", r, 0, FORM_ANY, &l->rope_mean},
		{"content_feedback", c, c, FORM_UNIT_LOWER, &l->content_feedback},
		{"content_weight", c, 0, FORM_POSITIVE, &l->content_weight},
		{"rope_feedback", r, r, FORM_UNIT_LOWER, &l->rope_feedback},
		{"rope_weight", r, 0, FORM_POSITIVE, &l->rope_weight},
		{"content_rotation", c, c, FORM_ORTHOGONAL, &l->content_rotation},
		{"rope_scale", r / 2, 0, FORM_POSITIVE, &l->rope_scale},
		{"content_scale", c, 0, FORM_POSITIVE, &l->content_scale},
		{"cross_feedback", c, r, FORM_ANY, &l->cross_feedback},
	};

	for (size_t k = 0; k < sizeof(arrays) / sizeof(arrays[0]); k++) {
		qmla_status_t status = read_array(file, i, arrays[k].name, arrays[k].rows,
						  arrays[k].columns, arrays[k].form, arrays[k].out);
		if (status)
			return status;
	}
	return QMLA_OK;
}

static bool is_array_name(const char *name)
{
	static const char *const names[] = {
		"content_mean",  "rope_mean",     "content_feedback", "content_weight",
		"rope_feedback", "rope_weight",   "rope_scale",       "content_rotation",
		"content_scale", "cross_feedback"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

/* The array's name in "layers.<number>.<array>", NULL when it is none of @layers layers. The number
 * is written as it is read: "00" or "+0" would be skipped as another name. */
static const char *array_of(const char *name, uint32_t layers)
{
	char prefix[32];
	unsigned layer;
	int length;

	if (sscanf(name, "layers.%9u", &layer) != 1 || layer >= layers)
		return NULL;
	length = snprintf(prefix, sizeof(prefix), "layers.%u.", layer);
	return strncmp(name, prefix, (size_t)length) == 0 ? name + length : NULL;
}

/* Every tensor must be one of ours: a misspelt one or a surplus layer would be ignored silently. */
static qmla_status_t check_names(const struct qmw_safetensors *file, uint32_t layers)
{
	for (uint32_t i = 0; i < qmw_safetensors_count(file); i++) {
		const char *name = qmw_safetensors_at(file, i)->name;
		const char *array = array_of(name, layers);

		if (array && is_array_name(array))
			continue;
		qmc_error(COMPONENT,
			  "%s: tensor %s is no constant of a model of %" PRIu32 " layers; " REMEDY,
			  qmw_safetensors_path(file), name, layers);
		return QMLA_ERR_FORMAT;
	}
	return QMLA_OK;
}

static qmla_status_t check_rotation(const struct qmw_constants *constants,
				    const struct qmw_config *config, const char *directory)
{
	uint32_t n = config->content_dim;

	if (constants->rotation == QMW_ROTATION_HADAMARD && (n & (n - 1))) {
		qmc_error(COMPONENT,
			  "%s/" JSON_NAME ": content_rotation \"hadamard\" needs a power of two, "
			  "kv_lora_rank is %" PRIu32,
			  directory, n);
		return QMLA_ERR_FORMAT;
	}
	for (uint32_t i = 0; i < constants->count; i++) {
		bool has = constants->layers[i].content_rotation != NULL;

		if (has == (constants->rotation == QMW_ROTATION_MATRIX))
			continue;
		qmc_error(COMPONENT,
			  "%s: layer %" PRIu32 " has %s content_rotation tensor, which " JSON_NAME
			  " does not say; " REMEDY,
			  directory, i, has ? "a" : "no");
		return QMLA_ERR_FORMAT;
	}
	return QMLA_OK;
}

/* Scales of fused weights: all layers have them, or none, as quantmla.json says. */
static qmla_status_t check_scales(const struct qmw_constants *constants, const char *directory)
{
	for (uint32_t i = 0; i < constants->count; i++) {
		const struct qmw_layer_constants *l = &constants->layers[i];

		if ((l->content_scale != NULL) != constants->scaled) {
			qmc_error(COMPONENT,
				  "%s: layer %" PRIu32
				  " has %s content_scale tensor, which " JSON_NAME
				  " does not say; " REMEDY,
				  directory, i, l->content_scale ? "a" : "no");
			return QMLA_ERR_FORMAT;
		}
		if (constants->version == 2 && l->rope_scale) {
			qmc_error(COMPONENT,
				  "%s: layer %" PRIu32 " has a rope_scale tensor, but the weights "
				  "are fused already; " REMEDY,
				  directory, i);
			return QMLA_ERR_FORMAT;
		}
	}
	return QMLA_OK;
}

static qmla_status_t read_layers(const char *directory, const struct qmw_config *config,
				 struct qmw_constants *constants,
				 uint8_t data_digest[QMC_SHA256_BYTES])
{
	char *path = qmw_path_join(directory, DATA_NAME);
	struct qmw_safetensors *file = NULL;
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status && !qmw_file_exists(path)) {
		qmc_error(COMPONENT,
			  "%s is missing beside " JSON_NAME "; copy it, or remove " JSON_NAME
			  " to run without",
			  path);
		status = QMLA_ERR_NOT_FOUND;
	}
	if (!status)
		status = qmw_safetensors_open(path, &file);
	if (!status)
		status = qmw_safetensors_digest(file, data_digest);
	if (!status)
		status = check_names(file, config->layers);
	for (uint32_t i = 0; i < config->layers && !status; i++)
		status = read_layer(file, i, config, &constants->layers[i]);
	if (!status)
		status = check_rotation(constants, config, directory);
	if (!status)
		status = check_scales(constants, directory);
	qmw_safetensors_close(file);
	free(path);
	return status;
}

static qmla_status_t check_weights(const struct qmw_constants *constants,
				   const uint8_t weights_digest[QMC_SHA256_BYTES], const char *path)
{
	char made[2 * QMC_SHA256_BYTES + 1], have[2 * QMC_SHA256_BYTES + 1];

	if (memcmp(constants->model_digest, weights_digest, QMC_SHA256_BYTES) == 0)
		return QMLA_OK;
	qmc_hex_encode(constants->model_digest, QMC_SHA256_BYTES, made);
	qmc_hex_encode(weights_digest, QMC_SHA256_BYTES, have);
	qmc_error(COMPONENT,
		  "%s was made for other weights (model_sha256 %.12s…, these are %.12s…); " REMEDY,
		  path, made, have);
	return QMLA_ERR_IDENTITY_MISMATCH;
}

static qmla_status_t open_present(const char *directory, const char *path,
				  const struct qmw_config *config,
				  const uint8_t weights_digest[QMC_SHA256_BYTES],
				  struct qmw_constants *out)
{
	uint8_t digests[2][QMC_SHA256_BYTES];
	struct qmw_constants self = {0};
	void *text;
	size_t length;
	qmla_status_t status = qmw_file_read(path, JSON_LIMIT, &text, &length);

	if (status)
		return status;
	status = qmw_constants_parse(text, length, path, &self);
	if (!status)
		status = qmc_sha256(text, length, digests[0]);
	free(text);
	if (!status)
		status = check_weights(&self, weights_digest, path);
	if (status)
		return status;
	self.layers = calloc(config->layers, sizeof(*self.layers));
	if (!self.layers)
		return QMLA_ERR_NO_MEMORY;
	self.count = config->layers;
	status = read_layers(directory, config, &self, digests[1]);
	if (!status)
		status = qmc_sha256(digests, sizeof(digests), self.digest);
	if (status) {
		qmw_constants_close(&self);
		return status;
	}
	*out = self;
	return QMLA_OK;
}

qmla_status_t qmw_constants_open(const char *directory, const struct qmw_config *config,
				 const uint8_t weights_digest[QMC_SHA256_BYTES], bool ignore,
				 struct qmw_constants *constants)
{
	struct qmw_constants plain = {.recipe = "none", .count = config->layers};
	char *path = qmw_path_join(directory, JSON_NAME);
	qmla_status_t status = QMLA_OK;

	if (!path)
		return QMLA_ERR_NO_MEMORY;
	if (!ignore && qmw_file_exists(path)) {
		status = open_present(directory, path, config, weights_digest, constants);
	} else {
		plain.layers = calloc(config->layers, sizeof(*plain.layers));
		if (plain.layers)
			*constants = plain;
		else
			status = QMLA_ERR_NO_MEMORY;
	}
	free(path);
	return status;
}

enum qmk_format qmw_constants_format(const struct qmw_constants *constants)
{
	if (constants->format == QMK_FORMAT_C4R4 && constants->quantiser == QMW_QUANTISER_PAPER)
		return QMK_FORMAT_PAPER_C4R4;
	return constants->format ? constants->format : QMK_FORMAT_C4R4;
}

qmla_status_t qmw_constants_read_format(const char *directory, enum qmk_format *format)
{
	struct qmw_constants parsed = {0};
	char *path = qmw_path_join(directory, JSON_NAME);
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	void *text = NULL;
	size_t length;

	if (!status && qmw_file_exists(path)) {
		status = qmw_file_read(path, JSON_LIMIT, &text, &length);
		if (!status)
			status = qmw_constants_parse(text, length, path, &parsed);
	}
	free(text);
	free(path);
	if (!status)
		*format = qmw_constants_format(&parsed);
	return status;
}

void qmw_constants_close(struct qmw_constants *constants)
{
	for (uint32_t i = 0; constants->layers && i < constants->count; i++) {
		struct qmw_layer_constants *l = &constants->layers[i];

		free(l->content_mean);
		free(l->rope_mean);
		free(l->content_feedback);
		free(l->content_weight);
		free(l->rope_feedback);
		free(l->rope_weight);
		free(l->content_rotation);
		free(l->rope_scale);
		free(l->content_scale);
		free(l->cross_feedback);
	}
	free(constants->layers);
	*constants = (struct qmw_constants){0};
}
