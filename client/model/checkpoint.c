/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/checkpoint.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/file.h"
#include "client/model/fp8.h"
#include "client/model/safetensors.h"
#include "common/log.h"

/* Out of memory: the name stays out of the set and the index is not read. */
#define HASH_NONFATAL_OOM          1
#define uthash_nonfatal_oom(entry) ((entry)->path = NULL)
#include <uthash.h>

#define COMPONENT   "model"
#define INDEX_NAME  "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define INDEX_LIMIT ((size_t)256 << 20)
#define FILES_MAX   4096u

struct qmw_checkpoint {
	char *directory;
	uint32_t count;
	char **names; /**< ascending */
	struct qmw_safetensors **files;
	json_t *map; /**< tensor → file name, NULL for a single file */
};

/* A plain name inside the directory: an index must not reach elsewhere. */
static bool is_plain_name(const char *name)
{
	return name[0] && name[0] != '.' && !strchr(name, '/') && strlen(name) <= 255;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static qmla_status_t add_name(struct qmw_checkpoint *self, const char *name)
{
	if (self->count == FILES_MAX) {
		qmc_error(COMPONENT, "%s/%s names more than %u shards", self->directory, INDEX_NAME,
			  FILES_MAX);
		return QMLA_ERR_TOO_LARGE;
	}
	self->names[self->count] = strdup(name);
	if (!self->names[self->count])
		return QMLA_ERR_NO_MEMORY;
	self->count++;
	return QMLA_OK;
}

/* Names of shards that the index gave before: there may be thousands, each for many tensors. */
struct seen {
	const char *path; /* the checkpoint's */
	UT_hash_handle hh;
};

static void forget(struct seen *seen)
{
	struct seen *entry, *next;

	HASH_ITER(hh, seen, entry, next)
	{
		HASH_DELETE(hh, seen, entry);
		free(entry);
	}
}

static qmla_status_t add_once(struct qmw_checkpoint *self, const char *name, struct seen **seen)
{
	struct seen *entry = NULL;
	qmla_status_t status;

	HASH_FIND_STR(*seen, name, entry);
	if (entry)
		return QMLA_OK;
	status = add_name(self, name);
	if (status)
		return status;
	entry = calloc(1, sizeof(*entry));
	if (!entry)
		return QMLA_ERR_NO_MEMORY;
	entry->path = self->names[self->count - 1];
	HASH_ADD_KEYPTR(hh, *seen, entry->path, strlen(entry->path), entry);
	if (entry->path)
		return QMLA_OK;
	free(entry);
	return QMLA_ERR_NO_MEMORY;
}

static qmla_status_t add_shards(struct qmw_checkpoint *self, struct seen **seen)
{
	const char *tensor;
	json_t *file;

	json_object_foreach(self->map, tensor, file)
	{
		const char *name = json_string_value(file);
		qmla_status_t status;

		if (!name || !is_plain_name(name)) {
			qmc_error(COMPONENT,
				  "%s/%s: tensor %.200s: the shard is no plain file name",
				  self->directory, INDEX_NAME, tensor);
			return QMLA_ERR_FORMAT;
		}
		status = add_once(self, name, seen);
		if (status)
			return status;
	}
	return QMLA_OK;
}

static qmla_status_t read_weight_map(struct qmw_checkpoint *self)
{
	struct seen *seen = NULL;
	qmla_status_t status;

	if (!json_is_object(self->map) || json_object_size(self->map) == 0) {
		qmc_error(COMPONENT, "%s/%s has no \"weight_map\" object", self->directory,
			  INDEX_NAME);
		return QMLA_ERR_FORMAT;
	}
	status = add_shards(self, &seen);
	forget(seen);
	qsort(self->names, self->count, sizeof(*self->names), compare_names);
	return status;
}

static qmla_status_t read_index(struct qmw_checkpoint *self, const char *path)
{
	json_error_t error;
	json_t *root;
	void *text;
	size_t length;
	qmla_status_t status = qmw_file_read(path, INDEX_LIMIT, &text, &length);

	if (status)
		return status;
	root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
	free(text);
	if (!root) {
		qmc_error(COMPONENT, "%s: line %d: %s", path, error.line, error.text);
		return QMLA_ERR_FORMAT;
	}
	self->map = json_incref(json_object_get(root, "weight_map"));
	json_decref(root);
	return read_weight_map(self);
}

static qmla_status_t list_files(struct qmw_checkpoint *self)
{
	char *single = qmw_path_join(self->directory, SINGLE_NAME);
	char *index = qmw_path_join(self->directory, INDEX_NAME);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (!single || !index)
		goto out;
	if (qmw_file_exists(single)) {
		status = add_name(self, SINGLE_NAME);
	} else if (qmw_file_exists(index)) {
		status = read_index(self, index);
	} else {
		qmc_error(COMPONENT,
			  "%s: neither %s nor %s is there; is it a checkpoint directory?",
			  self->directory, SINGLE_NAME, INDEX_NAME);
		status = QMLA_ERR_NOT_FOUND;
	}
out:
	free(single);
	free(index);
	return status;
}

static qmla_status_t open_file(struct qmw_checkpoint *self, uint32_t i)
{
	char *path = qmw_path_join(self->directory, self->names[i]);
	qmla_status_t status;

	if (!path)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_safetensors_open(path, &self->files[i]);
	free(path);
	return status;
}

/* A second tensor of a name would never be checked, and could be taken for the first. */
static qmla_status_t check_places(const struct qmw_checkpoint *self, uint32_t i)
{
	for (uint32_t t = 0; self->map && t < qmw_safetensors_count(self->files[i]); t++) {
		const char *name = qmw_safetensors_at(self->files[i], t)->name;
		const char *place = json_string_value(json_object_get(self->map, name));

		if (place && strcmp(place, self->names[i]) != 0) {
			qmc_error(COMPONENT,
				  "%s/%s holds tensor %s, which the index places in %s: shards "
				  "and index are not of one checkpoint",
				  self->directory, self->names[i], name, place);
			return QMLA_ERR_FORMAT;
		}
	}
	return QMLA_OK;
}

qmla_status_t qmw_checkpoint_open(const char *directory, struct qmw_checkpoint **checkpoint)
{
	struct qmw_checkpoint *self = calloc(1, sizeof(*self));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->directory = strdup(directory);
	self->names = calloc(FILES_MAX, sizeof(*self->names));
	self->files = calloc(FILES_MAX, sizeof(*self->files));
	if (self->directory && self->names && self->files)
		status = list_files(self);
	for (uint32_t i = 0; i < self->count && !status; i++)
		status = open_file(self, i);
	for (uint32_t i = 0; i < self->count && !status; i++)
		status = check_places(self, i);
	if (status) {
		qmw_checkpoint_close(self);
		return status;
	}
	*checkpoint = self;
	return QMLA_OK;
}

void qmw_checkpoint_close(struct qmw_checkpoint *checkpoint)
{
	if (!checkpoint)
		return;
	for (uint32_t i = 0; i < checkpoint->count; i++) {
		qmw_safetensors_close(checkpoint->files ? checkpoint->files[i] : NULL);
		free(checkpoint->names[i]);
	}
	json_decref(checkpoint->map);
	free(checkpoint->names);
	free(checkpoint->files);
	free(checkpoint->directory);
	free(checkpoint);
}

qmla_status_t qmw_checkpoint_digest(const struct qmw_checkpoint *checkpoint,
				    uint8_t digest[QMC_SHA256_BYTES])
{
	uint8_t *digests = malloc((size_t)checkpoint->count * QMC_SHA256_BYTES);
	qmla_status_t status = digests ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	for (uint32_t i = 0; i < checkpoint->count && !status; i++)
		status = qmw_safetensors_digest(checkpoint->files[i],
						digests + (size_t)i * QMC_SHA256_BYTES);
	if (!status)
		status = qmc_sha256(digests, (size_t)checkpoint->count * QMC_SHA256_BYTES, digest);
	free(digests);
	return status;
}

uint32_t qmw_checkpoint_files(const struct qmw_checkpoint *checkpoint)
{
	return checkpoint->count;
}

const struct qmw_safetensors *qmw_checkpoint_file(const struct qmw_checkpoint *checkpoint,
						  uint32_t index)
{
	return checkpoint->files[index];
}

/* The file that should hold @p name: the index says which, or the only one. */
static const struct qmw_safetensors *file_of(const struct qmw_checkpoint *self, const char *name)
{
	const char *file;
	char *const *at;

	if (!self->map)
		return self->files[0];
	file = json_string_value(json_object_get(self->map, name));
	at = file ? bsearch(&file, self->names, self->count, sizeof(*self->names), compare_names)
		  : NULL;
	return at ? self->files[at - self->names] : NULL;
}

const struct qmw_tensor *qmw_checkpoint_tensor(const struct qmw_checkpoint *checkpoint,
					       const char *name)
{
	const struct qmw_safetensors *file = file_of(checkpoint, name);

	return file ? qmw_safetensors_find(file, name) : NULL;
}

bool qmw_checkpoint_has(const struct qmw_checkpoint *checkpoint, const char *name)
{
	return qmw_checkpoint_tensor(checkpoint, name) != NULL;
}

qmla_status_t qmw_tensor_check_shape(const struct qmw_tensor *tensor, const char *path,
				     uint64_t rows, uint64_t columns)
{
	uint64_t wanted[2] = {rows, columns};
	uint32_t rank = columns ? 2 : 1;
	char is[192], should[192];

	if (tensor->rank == rank && tensor->shape[0] == rows &&
	    (rank == 1 || tensor->shape[1] == columns))
		return QMLA_OK;
	qmw_shape_format(tensor->shape, tensor->rank, is);
	qmw_shape_format(wanted, rank, should);
	qmc_error(COMPONENT,
		  "%s: tensor %s has shape %s, but config.json asks for %s: they do not belong "
		  "together",
		  path, tensor->name, is, should);
	return QMLA_ERR_FORMAT;
}

qmla_status_t qmw_checkpoint_find(const struct qmw_checkpoint *self, const char *name,
				  uint64_t rows, uint64_t columns, const struct qmw_tensor **found,
				  const char **path)
{
	const struct qmw_safetensors *file = file_of(self, name);
	const struct qmw_tensor *tensor = file ? qmw_safetensors_find(file, name) : NULL;

	if (!tensor) {
		qmc_error(COMPONENT, "%s: tensor %s is missing%s",
			  file ? qmw_safetensors_path(file) : self->directory, name,
			  file ? "" : " from the index");
		return QMLA_ERR_NOT_FOUND;
	}
	*found = tensor;
	*path = qmw_safetensors_path(file);
	return qmw_tensor_check_shape(tensor, *path, rows, columns);
}

qmla_status_t qmw_checkpoint_check(const struct qmw_checkpoint *checkpoint, const char *name,
				   uint64_t rows, uint64_t columns)
{
	const struct qmw_tensor *tensor;
	const char *path;
	float none;
	qmla_status_t status = qmw_checkpoint_find(checkpoint, name, rows, columns, &tensor, &path);

	if (!status)
		status = qmw_tensor_range_to_float(tensor, path, 0, 0, &none);
	if (!status && tensor->dtype == QMW_DTYPE_F8_E4M3)
		status = qmw_fp8_check(checkpoint, name, rows, columns ? columns : 1);
	return status;
}

qmla_status_t qmw_checkpoint_read_rows(const struct qmw_checkpoint *checkpoint, const char *name,
				       uint64_t rows, uint64_t columns, uint64_t first,
				       uint64_t count, float *values)
{
	const struct qmw_tensor *tensor;
	const char *path;
	qmla_status_t status = qmw_checkpoint_find(checkpoint, name, rows, columns, &tensor, &path);

	if (status)
		return status;
	columns = columns ? columns : 1;
	status = qmw_tensor_range_to_float(tensor, path, first * columns, count * columns, values);
	if (!status && tensor->dtype == QMW_DTYPE_F8_E4M3)
		status = qmw_fp8_scale(checkpoint, name, rows, columns, first, count, values);
	return status;
}

qmla_status_t qmw_checkpoint_read(const struct qmw_checkpoint *checkpoint, const char *name,
				  uint64_t rows, uint64_t columns, float **values)
{
	const struct qmw_tensor *tensor;
	const char *path;
	qmla_status_t status = qmw_checkpoint_find(checkpoint, name, rows, columns, &tensor, &path);
	float *buffer;

	if (status)
		return status;
	buffer = malloc(tensor->elements * sizeof(*buffer) + 1);
	if (!buffer)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_checkpoint_read_rows(checkpoint, name, rows, columns, 0, rows, buffer);
	if (status) {
		free(buffer);
		return status;
	}
	*values = buffer;
	return QMLA_OK;
}
