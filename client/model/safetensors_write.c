/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"

#define COMPONENT "model"
/* The data part is aligned: readers map it and cast. */
#define HEADER_ALIGN 8u

struct qmw_safetensors_writer {
	char *path;
	int fd; /**< -1: closed */
	bool created, finished;
	uint64_t left; /**< bytes of data to come */
	struct qmc_sha256 *hash;
};

static const struct {
	enum qmw_dtype dtype;
	const char *name;
	uint32_t bytes;
} dtypes[] = {
	{QMW_DTYPE_F32, "F32", 4},
	{QMW_DTYPE_F16, "F16", 2},
	{QMW_DTYPE_BF16, "BF16", 2},
	{QMW_DTYPE_I64, "I64", 8},
};

static qmla_status_t fail(const struct qmw_safetensors_writer *self, const char *what)
{
	int error = errno;

	qmc_error(COMPONENT, "%s: %s: %s", self->path, what, strerror(error));
	return qmc_status_from_errno(error);
}

static qmla_status_t put(struct qmw_safetensors_writer *self, const void *data, size_t bytes)
{
	const uint8_t *from = data;
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = write(self->fd, from + done, bytes - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(self, "cannot be written");
		done += (size_t)n;
	}
	return qmc_sha256_update(self->hash, data, bytes);
}

static qmla_status_t create(const char *path, uint64_t data_bytes,
			    struct qmw_safetensors_writer **writer)
{
	struct qmw_safetensors_writer *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->fd = -1;
	self->left = data_bytes;
	self->path = strdup(path);
	status = self->path ? qmc_sha256_create(&self->hash) : QMLA_ERR_NO_MEMORY;
	if (!status) {
		self->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		self->created = self->fd >= 0;
		status = self->created ? QMLA_OK : fail(self, "cannot be created");
	}
	if (status) {
		qmw_safetensors_writer_destroy(self);
		return status;
	}
	*writer = self;
	return QMLA_OK;
}

/* One header entry; *end is where its data ends. */
static json_t *describe(const struct qmw_tensor_spec *spec, uint64_t *end)
{
	json_t *shape = json_array();
	uint64_t begin = *end, bytes = 0;
	const char *name = NULL;

	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		if (dtypes[i].dtype == spec->dtype) {
			name = dtypes[i].name;
			bytes = dtypes[i].bytes;
		}
	}
	for (uint32_t i = 0; i < spec->rank && i < QMW_TENSOR_RANK_MAX; i++) {
		json_array_append_new(shape, json_integer((json_int_t)spec->shape[i]));
		if (__builtin_mul_overflow(bytes, spec->shape[i], &bytes))
			name = NULL;
	}
	if (!name || __builtin_add_overflow(begin, bytes, end)) {
		json_decref(shape);
		return NULL;
	}
	return json_pack("{s:s,s:o,s:[I,I]}", "dtype", name, "shape", shape, "data_offsets",
			 (json_int_t)begin, (json_int_t)*end);
}

/* The header as it stands in the file, malloc'ed: length, JSON, spaces up to the alignment. */
static qmla_status_t make_header(const char *path, const struct qmw_tensor_spec *specs,
				 uint32_t count, uint8_t **header, size_t *bytes, uint64_t *data)
{
	json_t *root = json_object();
	qmla_status_t status = QMLA_ERR_NO_MEMORY;
	size_t length, padded;
	char *text = NULL;

	*data = 0;
	for (uint32_t i = 0; root && i < count; i++) {
		json_t *entry =
			json_object_get(root, specs[i].name) ? NULL : describe(&specs[i], data);

		if (entry && json_object_set_new(root, specs[i].name, entry) == 0)
			continue;
		qmc_error(COMPONENT, "%s: tensor %.200s cannot be written: its name or its shape",
			  path, specs[i].name);
		status = QMLA_ERR_INVALID_ARGUMENT;
		goto out;
	}
	text = root ? json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
	if (!text)
		goto out;
	length = strlen(text);
	padded = (length + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
	*header = malloc(8 + padded);
	if (!*header)
		goto out;
	for (int i = 0; i < 8; i++)
		(*header)[i] = (uint8_t)((uint64_t)padded >> 8 * i);
	memcpy(*header + 8, text, length);
	memset(*header + 8 + length, ' ', padded - length);
	*bytes = 8 + padded;
	status = QMLA_OK;
out:
	free(text);
	json_decref(root);
	return status;
}

qmla_status_t qmw_safetensors_write(const char *path, const struct qmw_tensor_spec *specs,
				    uint32_t count, struct qmw_safetensors_writer **writer)
{
	uint8_t *header = NULL;
	uint64_t data;
	size_t bytes;
	qmla_status_t status = make_header(path, specs, count, &header, &bytes, &data);

	if (!status)
		status = qmw_safetensors_write_like(path, header, bytes, data, writer);
	free(header);
	return status;
}

qmla_status_t qmw_safetensors_write_like(const char *path, const void *header, size_t bytes,
					 uint64_t data_bytes,
					 struct qmw_safetensors_writer **writer)
{
	struct qmw_safetensors_writer *self;
	qmla_status_t status = create(path, data_bytes, &self);

	if (status)
		return status;
	status = put(self, header, bytes);
	if (status) {
		qmw_safetensors_writer_destroy(self);
		return status;
	}
	*writer = self;
	return QMLA_OK;
}

qmla_status_t qmw_safetensors_append(struct qmw_safetensors_writer *writer, const void *data,
				     size_t bytes)
{
	qmla_status_t status;

	if (bytes > writer->left) {
		qmc_error(COMPONENT, "%s: more data than its header says", writer->path);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = put(writer, data, bytes);
	if (!status)
		writer->left -= bytes;
	return status;
}

qmla_status_t qmw_safetensors_finish(struct qmw_safetensors_writer *writer,
				     uint8_t digest[QMC_SHA256_BYTES])
{
	uint8_t hashed[QMC_SHA256_BYTES];
	int fd = writer->fd;
	qmla_status_t status;

	if (writer->left > 0) {
		qmc_error(COMPONENT, "%s: %" PRIu64 " bytes of data were not given", writer->path,
			  writer->left);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = qmc_sha256_finish(writer->hash, hashed);
	if (status)
		return status;
	if (fsync(fd) != 0)
		return fail(writer, "cannot be written to the disk");
	writer->fd = -1;
	if (close(fd) != 0)
		return fail(writer, "cannot be closed");
	writer->finished = true;
	if (digest)
		memcpy(digest, hashed, sizeof(hashed));
	return QMLA_OK;
}

void qmw_safetensors_writer_destroy(struct qmw_safetensors_writer *writer)
{
	if (!writer)
		return;
	if (writer->fd >= 0)
		close(writer->fd);
	if (writer->created && !writer->finished)
		unlink(writer->path);
	qmc_sha256_destroy(writer->hash);
	free(writer->path);
	free(writer);
}
