/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/file.h"
#include "common/log.h"

#define COMPONENT "model"

struct qmw_safetensors {
	struct qmw_source *source;
	const char *path; /**< the source's */
	void *owned;      /**< bytes of a loaded file */
	uint64_t data_begin, data_length;
	json_t *header; /**< keeps the names */
	uint32_t count;
	struct qmw_tensor *tensors; /**< sorted by name */
};

static const struct {
	const char *name;
	enum qmw_dtype dtype;
	uint32_t bytes;
} dtypes[] = {
	{"F32", QMW_DTYPE_F32, 4},       {"F16", QMW_DTYPE_F16, 2},
	{"BF16", QMW_DTYPE_BF16, 2},     {"I64", QMW_DTYPE_I64, 8},
	{"F64", QMW_DTYPE_OTHER, 8},     {"I32", QMW_DTYPE_OTHER, 4},
	{"I16", QMW_DTYPE_OTHER, 2},     {"I8", QMW_DTYPE_OTHER, 1},
	{"U8", QMW_DTYPE_OTHER, 1},      {"U16", QMW_DTYPE_OTHER, 2},
	{"U32", QMW_DTYPE_OTHER, 4},     {"U64", QMW_DTYPE_OTHER, 8},
	{"BOOL", QMW_DTYPE_OTHER, 1},    {"F8_E4M3", QMW_DTYPE_F8_E4M3, 1},
	{"F8_E5M2", QMW_DTYPE_OTHER, 1}, {"F8_E8M0", QMW_DTYPE_OTHER, 1},
};

static uint64_t read_u64(const uint8_t *p)
{
	uint64_t value = 0;

	for (int i = 7; i >= 0; i--)
		value = value << 8 | p[i];
	return value;
}

static qmla_status_t parse_dtype(const json_t *entry, struct qmw_tensor *tensor, uint32_t *bytes)
{
	const char *name = json_string_value(json_object_get(entry, "dtype"));

	for (size_t i = 0; name && i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		if (strcmp(name, dtypes[i].name) != 0)
			continue;
		tensor->dtype = dtypes[i].dtype;
		snprintf(tensor->dtype_name, sizeof(tensor->dtype_name), "%s", name);
		*bytes = dtypes[i].bytes;
		return QMLA_OK;
	}
	return QMLA_ERR_FORMAT;
}

/* Shape and element count, refusing a product that does not fit. */
static qmla_status_t parse_shape(const json_t *entry, struct qmw_tensor *tensor)
{
	const json_t *shape = json_object_get(entry, "shape");
	size_t rank = json_array_size(shape);

	if (!json_is_array(shape) || rank > QMW_TENSOR_RANK_MAX)
		return QMLA_ERR_FORMAT;
	tensor->rank = (uint32_t)rank;
	tensor->elements = 1;
	for (size_t i = 0; i < rank; i++) {
		const json_t *extent = json_array_get(shape, i);
		json_int_t value = json_integer_value(extent);

		if (!json_is_integer(extent) || value < 0)
			return QMLA_ERR_FORMAT;
		tensor->shape[i] = (uint64_t)value;
		if (__builtin_mul_overflow(tensor->elements, (uint64_t)value, &tensor->elements))
			return QMLA_ERR_FORMAT;
	}
	return QMLA_OK;
}

static qmla_status_t parse_offsets(const json_t *entry, struct qmw_tensor *tensor)
{
	const json_t *offsets = json_object_get(entry, "data_offsets");
	const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);

	if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
	    json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
		return QMLA_ERR_FORMAT;
	tensor->begin = (uint64_t)json_integer_value(begin);
	tensor->end = (uint64_t)json_integer_value(end);
	return QMLA_OK;
}

static qmla_status_t fail(const struct qmw_safetensors *file, const char *name, const char *what)
{
	qmc_error(COMPONENT, "%s: tensor %.200s: %s; the file is damaged or no safetensors file",
		  file->path, name, what);
	return QMLA_ERR_FORMAT;
}

static qmla_status_t parse_tensor(const struct qmw_safetensors *file, const char *name,
				  const json_t *entry, struct qmw_tensor *tensor)
{
	uint32_t element = 0;
	uint64_t bytes;

	*tensor = (struct qmw_tensor){.name = name};
	if (!name[0] || strlen(name) > QMW_TENSOR_NAME_MAX)
		return fail(file, name, "the name is empty or too long");
	if (!json_is_object(entry))
		return fail(file, name, "its header entry is no JSON object");
	if (parse_dtype(entry, tensor, &element))
		return fail(file, name, "dtype is missing or unknown");
	if (parse_shape(entry, tensor))
		return fail(file, name, "shape is missing, negative or too large");
	if (parse_offsets(entry, tensor))
		return fail(file, name, "data_offsets is not [begin, end] with 0 <= begin <= end");
	if (__builtin_mul_overflow(tensor->elements, (uint64_t)element, &bytes) ||
	    bytes != tensor->end - tensor->begin)
		return fail(file, name, "data_offsets do not match dtype and shape");
	if (tensor->end > file->data_length) {
		qmc_error(COMPONENT,
			  "%s: tensor %.200s ends at byte %" PRIu64
			  " of the data, which has only %" PRIu64
			  ": the file is truncated; copy it again",
			  file->path, name, tensor->end, file->data_length);
		return QMLA_ERR_CORRUPT;
	}
	tensor->source = file->source;
	tensor->offset = file->data_begin + tensor->begin;
	if (qmw_source_bytes(file->source))
		tensor->data = qmw_source_bytes(file->source) + tensor->offset;
	return QMLA_OK;
}

static int compare_begin(const void *a, const void *b)
{
	const struct qmw_tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

static int compare_name(const void *a, const void *b)
{
	return strcmp(((const struct qmw_tensor *)a)->name, ((const struct qmw_tensor *)b)->name);
}

/* The data is covered exactly: no tensor over another, no byte without an owner. */
static qmla_status_t check_cover(struct qmw_safetensors *file)
{
	uint64_t end = 0;

	qsort(file->tensors, file->count, sizeof(*file->tensors), compare_begin);
	for (uint32_t i = 0; i < file->count; i++) {
		if (file->tensors[i].begin < end)
			return fail(file, file->tensors[i].name,
				    "its data overlaps another tensor");
		if (file->tensors[i].begin > end)
			return fail(file, file->tensors[i].name, "there is a gap before its data");
		end = file->tensors[i].end;
	}
	if (end != file->data_length) {
		qmc_error(COMPONENT,
			  "%s: %" PRIu64 " bytes follow the last tensor: the file is damaged",
			  file->path, file->data_length - end);
		return QMLA_ERR_FORMAT;
	}
	qsort(file->tensors, file->count, sizeof(*file->tensors), compare_name);
	return QMLA_OK;
}

static qmla_status_t parse_tensors(struct qmw_safetensors *file)
{
	size_t entries = json_object_size(file->header);
	const char *name;
	json_t *entry;

	if (entries > UINT32_MAX)
		return QMLA_ERR_TOO_LARGE;
	file->tensors = calloc(entries ? entries : 1, sizeof(*file->tensors));
	if (!file->tensors)
		return QMLA_ERR_NO_MEMORY;
	json_object_foreach(file->header, name, entry)
	{
		qmla_status_t status;

		if (strcmp(name, "__metadata__") == 0)
			continue;
		status = parse_tensor(file, name, entry, &file->tensors[file->count]);
		if (status)
			return status;
		file->count++;
	}
	return check_cover(file);
}

/* The header's text is @p length bytes behind the first eight. */
static qmla_status_t parse_json(struct qmw_safetensors *file, uint64_t length)
{
	char *text = malloc((size_t)length);
	json_error_t error;
	qmla_status_t status;

	if (!text)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_source_read(file->source, 8, length, text);
	if (!status) {
		file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
		if (!json_is_object(file->header)) {
			qmc_error(COMPONENT, "%s: the header is no JSON object: %s (byte %d)",
				  file->path, file->header ? "another JSON value" : error.text,
				  file->header ? 0 : error.position);
			status = QMLA_ERR_FORMAT;
		}
	}
	free(text);
	return status;
}

static qmla_status_t parse_header(struct qmw_safetensors *file)
{
	uint64_t length = qmw_source_length(file->source), header;
	uint8_t bytes[8];
	qmla_status_t status;

	if (length < 8) {
		qmc_error(COMPONENT, "%s: %" PRIu64 " bytes are too few for a safetensors file",
			  file->path, length);
		return QMLA_ERR_CORRUPT;
	}
	status = qmw_source_read(file->source, 0, 8, bytes);
	if (status)
		return status;
	header = read_u64(bytes);
	if (header < 2 || header > QMW_SAFETENSORS_HEADER_MAX) {
		qmc_error(COMPONENT,
			  "%s: header length %" PRIu64 " is impossible: no safetensors file",
			  file->path, header);
		return QMLA_ERR_FORMAT;
	}
	if (header > length - 8) {
		qmc_error(COMPONENT, "%s: truncated inside the header; copy it again", file->path);
		return QMLA_ERR_CORRUPT;
	}
	status = parse_json(file, header);
	if (status)
		return status;
	file->data_begin = 8 + header;
	file->data_length = length - 8 - header;
	return parse_tensors(file);
}

/* Takes @p source, also when it fails. */
static qmla_status_t open_source(struct qmw_source *source, struct qmw_safetensors **file)
{
	struct qmw_safetensors *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self) {
		qmw_source_close(source);
		return QMLA_ERR_NO_MEMORY;
	}
	self->source = source;
	self->path = qmw_source_path(source);
	status = parse_header(self);
	if (status) {
		qmw_safetensors_close(self);
		return status;
	}
	*file = self;
	return QMLA_OK;
}

qmla_status_t qmw_safetensors_parse(const void *bytes, uint64_t length, const char *label,
				    struct qmw_safetensors **file)
{
	struct qmw_source *source;
	qmla_status_t status = qmw_source_wrap(bytes, length, label, &source);

	return status ? status : open_source(source, file);
}

qmla_status_t qmw_safetensors_open(const char *path, struct qmw_safetensors **file)
{
	struct qmw_source *source;
	qmla_status_t status = qmw_source_open(path, &source);

	return status ? status : open_source(source, file);
}

qmla_status_t qmw_safetensors_load(const char *path, struct qmw_safetensors **file)
{
	void *bytes;
	size_t length;
	qmla_status_t status = qmw_file_read(path, SIZE_MAX, &bytes, &length);

	if (status)
		return status;
	status = qmw_safetensors_parse(bytes, length, path, file);
	if (status)
		free(bytes);
	else
		(*file)->owned = bytes;
	return status;
}

void qmw_safetensors_close(struct qmw_safetensors *file)
{
	if (!file)
		return;
	json_decref(file->header);
	free(file->tensors);
	qmw_source_close(file->source);
	free(file->owned);
	free(file);
}

const char *qmw_safetensors_path(const struct qmw_safetensors *file)
{
	return file->path;
}

uint32_t qmw_safetensors_count(const struct qmw_safetensors *file)
{
	return file->count;
}

const struct qmw_tensor *qmw_safetensors_at(const struct qmw_safetensors *file, uint32_t index)
{
	return &file->tensors[index];
}

const struct qmw_tensor *qmw_safetensors_find(const struct qmw_safetensors *file, const char *name)
{
	const struct qmw_tensor key = {.name = name};

	return bsearch(&key, file->tensors, file->count, sizeof(key), compare_name);
}

qmla_status_t qmw_safetensors_digest(const struct qmw_safetensors *file,
				     uint8_t digest[QMC_SHA256_BYTES])
{
	return qmw_source_digest(file->source, digest);
}
