/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"

#define COMPONENT "model"
#define READ_MAX  (UINT64_C(1) << 30)
#define PIECE     ((size_t)1 << 20)

struct qmw_source {
	char *path;
	uint64_t length;
	const uint8_t *bytes; /**< NULL: the file */
	int fd;
	struct timespec changed;
};

static qmla_status_t create(const char *path, struct qmw_source **source)
{
	struct qmw_source *self = calloc(1, sizeof(*self));

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->fd = -1;
	self->path = strdup(path);
	if (!self->path) {
		free(self);
		return QMLA_ERR_NO_MEMORY;
	}
	*source = self;
	return QMLA_OK;
}

static qmla_status_t open_file(struct qmw_source *self)
{
	struct stat st;

	/* Non-blocking: opening a FIFO must not hang. */
	self->fd = open(self->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (self->fd < 0 || fstat(self->fd, &st) != 0) {
		qmla_status_t status = qmc_status_from_errno(errno);

		qmc_error(COMPONENT, "%s: %s", self->path, strerror(errno));
		return status;
	}
	if (!S_ISREG(st.st_mode)) {
		qmc_error(COMPONENT, "%s: is no regular file", self->path);
		return QMLA_ERR_FORMAT;
	}
	self->length = (uint64_t)st.st_size;
	self->changed = st.st_mtim;
	return QMLA_OK;
}

qmla_status_t qmw_source_open(const char *path, struct qmw_source **source)
{
	struct qmw_source *self;
	qmla_status_t status = create(path, &self);

	if (status)
		return status;
	status = open_file(self);
	if (status) {
		qmw_source_close(self);
		return status;
	}
	*source = self;
	return QMLA_OK;
}

qmla_status_t qmw_source_wrap(const void *bytes, uint64_t length, const char *label,
			      struct qmw_source **source)
{
	qmla_status_t status = create(label, source);

	if (status)
		return status;
	(*source)->bytes = bytes;
	(*source)->length = length;
	return QMLA_OK;
}

void qmw_source_close(struct qmw_source *source)
{
	if (!source)
		return;
	if (source->fd >= 0)
		close(source->fd);
	free(source->path);
	free(source);
}

const char *qmw_source_path(const struct qmw_source *source)
{
	return source->path;
}

uint64_t qmw_source_length(const struct qmw_source *source)
{
	return source->length;
}

const uint8_t *qmw_source_bytes(const struct qmw_source *source)
{
	return source->bytes;
}

static qmla_status_t read_file(const struct qmw_source *source, uint64_t offset, uint64_t length,
			       uint8_t *bytes)
{
	uint64_t done = 0;

	while (done < length) {
		uint64_t want = length - done < READ_MAX ? length - done : READ_MAX;
		ssize_t n = pread(source->fd, bytes + done, (size_t)want, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			qmc_error(COMPONENT, "%s: read failed: %s", source->path, strerror(errno));
			return QMLA_ERR_IO;
		}
		if (n == 0) {
			qmc_error(COMPONENT,
				  "%s: became shorter after it was opened; copy it again",
				  source->path);
			return QMLA_ERR_CORRUPT;
		}
		done += (uint64_t)n;
	}
	return QMLA_OK;
}

/* After the read, so that a change during it is noticed as well. */
static qmla_status_t check_unchanged(const struct qmw_source *source)
{
	struct stat st;

	if (fstat(source->fd, &st) != 0) {
		qmc_error(COMPONENT, "%s: %s", source->path, strerror(errno));
		return QMLA_ERR_IO;
	}
	if ((uint64_t)st.st_size == source->length && st.st_mtim.tv_sec == source->changed.tv_sec &&
	    st.st_mtim.tv_nsec == source->changed.tv_nsec)
		return QMLA_OK;
	qmc_error(COMPONENT, "%s: was changed after it was opened; start again when it is complete",
		  source->path);
	return QMLA_ERR_CORRUPT;
}

qmla_status_t qmw_source_read(const struct qmw_source *source, uint64_t offset, uint64_t length,
			      void *bytes)
{
	qmla_status_t status;

	if (offset > source->length || length > source->length - offset)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (source->bytes) {
		memcpy(bytes, source->bytes + offset, (size_t)length);
		return QMLA_OK;
	}
	status = read_file(source, offset, length, bytes);
	return status ? status : check_unchanged(source);
}

qmla_status_t qmw_source_digest(const struct qmw_source *source, uint8_t digest[QMC_SHA256_BYTES])
{
	struct qmc_sha256 *hash = NULL;
	void *piece = malloc(PIECE);
	qmla_status_t status = piece ? qmc_sha256_create(&hash) : QMLA_ERR_NO_MEMORY;

	for (uint64_t at = 0; at < source->length && !status; at += PIECE) {
		uint64_t left = source->length - at, want = left < PIECE ? left : PIECE;

		status = qmw_source_read(source, at, want, piece);
		if (!status)
			status = qmc_sha256_update(hash, piece, (size_t)want);
	}
	if (!status)
		status = qmc_sha256_finish(hash, digest);
	qmc_sha256_destroy(hash);
	free(piece);
	return status;
}
