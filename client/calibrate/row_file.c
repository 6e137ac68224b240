/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/row_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/calibrate/disk.h"
#include "common/log.h"

#define COMPONENT "calibrate"
#define MAGIC     "QMLAROW1"

struct header {
	char magic[8];
	uint8_t tag[QMC_SHA256_BYTES];
	uint64_t blocks, floats;
	uint64_t reserved;
};

struct qmw_row_file {
	int fd;
	bool complete;
	uint32_t blocks;
	uint64_t floats;
	char *path, *temporary;
};

static uint64_t block_bytes(const struct qmw_row_file *file)
{
	return file->floats * sizeof(float);
}

static struct header header_of(const uint8_t tag[QMC_SHA256_BYTES], uint32_t blocks,
			       uint64_t floats)
{
	struct header header = {.blocks = blocks, .floats = floats};

	memcpy(header.magic, MAGIC, sizeof(header.magic));
	memcpy(header.tag, tag, QMC_SHA256_BYTES);
	return header;
}

static struct qmw_row_file *file_alloc(const char *path, uint32_t blocks, uint64_t floats)
{
	struct qmw_row_file *self = calloc(1, sizeof(*self));
	size_t length = strlen(path) + sizeof(".tmp");

	if (!self)
		return NULL;
	self->fd = -1;
	self->blocks = blocks;
	self->floats = floats;
	self->path = strdup(path);
	self->temporary = malloc(length);
	if (!self->path || !self->temporary) {
		qmw_row_file_close(self);
		return NULL;
	}
	snprintf(self->temporary, length, "%s.tmp", path);
	return self;
}

qmla_status_t qmw_row_file_create(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				  uint32_t blocks, uint64_t floats, struct qmw_row_file **file)
{
	struct header header = header_of(tag, blocks, floats);
	struct qmw_row_file *self = file_alloc(path, blocks, floats);
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->fd = open(self->temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (self->fd < 0) {
		status = qmw_disk_status(errno);
		qmc_error(COMPONENT, "%s cannot be created: %s", self->temporary, strerror(errno));
		goto err_close;
	}
	status = qmw_disk_write(self->fd, &header, sizeof(header), 0, self->temporary);
	if (status != QMLA_OK)
		goto err_close;
	*file = self;
	return QMLA_OK;
err_close:
	qmw_row_file_close(self);
	return status;
}

qmla_status_t qmw_row_file_open(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				uint32_t blocks, uint64_t floats, struct qmw_row_file **file)
{
	struct header wanted = header_of(tag, blocks, floats), found;
	struct qmw_row_file *self = file_alloc(path, blocks, floats);
	qmla_status_t status;
	struct stat info;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->complete = true;
	self->fd = open(path, O_RDONLY | O_CLOEXEC);
	status = self->fd >= 0 ? QMLA_OK : QMLA_ERR_IO;
	if (self->fd < 0 && errno == ENOENT)
		status = QMLA_ERR_NOT_FOUND;
	else if (self->fd < 0)
		qmc_error(COMPONENT, "%s cannot be opened: %s", path, strerror(errno));
	if (status == QMLA_OK &&
	    (fstat(self->fd, &info) != 0 ||
	     (uint64_t)info.st_size != sizeof(found) + (uint64_t)blocks * block_bytes(self) ||
	     pread(self->fd, &found, sizeof(found), 0) != sizeof(found) ||
	     memcmp(&wanted, &found, sizeof(found)) != 0))
		status = QMLA_ERR_CORRUPT;
	if (status != QMLA_OK) {
		qmw_row_file_close(self);
		return status;
	}
	*file = self;
	return QMLA_OK;
}

qmla_status_t qmw_row_file_write(struct qmw_row_file *file, uint32_t index, const float *values)
{
	return qmw_disk_write(file->fd, values, block_bytes(file),
			      sizeof(struct header) + index * block_bytes(file), file->temporary);
}

qmla_status_t qmw_row_file_read(const struct qmw_row_file *file, uint32_t index, float *values)
{
	uint8_t *to = (uint8_t *)values;
	uint64_t left = block_bytes(file);
	uint64_t at = sizeof(struct header) + index * left;

	while (left > 0) {
		ssize_t got = pread(file->fd, to, left, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			qmc_error(COMPONENT, "%s cannot be read: %s", file->path,
				  got == 0 ? "it is cut short" : strerror(errno));
			return QMLA_ERR_IO;
		}
		to += got;
		at += (uint64_t)got;
		left -= (uint64_t)got;
	}
	return QMLA_OK;
}

qmla_status_t qmw_row_file_finish(struct qmw_row_file *file)
{
	qmla_status_t status = qmw_disk_publish(file->fd, file->temporary, file->path);

	if (status == QMLA_OK)
		file->complete = true;
	return status;
}

void qmw_row_file_close(struct qmw_row_file *file)
{
	if (!file)
		return;
	if (file->fd >= 0) {
		close(file->fd);
		if (!file->complete)
			unlink(file->temporary);
	}
	free(file->temporary);
	free(file->path);
	free(file);
}
