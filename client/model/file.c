/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"

#define COMPONENT "model"
#define READ_MAX  ((size_t)1 << 30)

static qmla_status_t read_all(int fd, const char *path, uint8_t *bytes, size_t length)
{
	size_t done = 0;

	while (done < length) {
		size_t want = length - done < READ_MAX ? length - done : READ_MAX;
		ssize_t n = read(fd, bytes + done, want);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			qmc_error(COMPONENT, "%s: read failed: %s", path, strerror(errno));
			return QMLA_ERR_IO;
		}
		if (n == 0) {
			qmc_error(COMPONENT, "%s: became shorter while it was read", path);
			return QMLA_ERR_CORRUPT;
		}
		done += (size_t)n;
	}
	return QMLA_OK;
}

static qmla_status_t read_open(int fd, const char *path, size_t limit, void **bytes, size_t *length)
{
	struct stat st;
	uint8_t *buffer;
	qmla_status_t status;

	if (fstat(fd, &st) != 0) {
		qmc_error(COMPONENT, "%s: %s", path, strerror(errno));
		return QMLA_ERR_IO;
	}
	if (!S_ISREG(st.st_mode)) {
		qmc_error(COMPONENT, "%s: is no regular file", path);
		return QMLA_ERR_FORMAT;
	}
	if ((uintmax_t)st.st_size >= SIZE_MAX || (size_t)st.st_size > limit) {
		qmc_error(COMPONENT, "%s: %jd bytes are over the limit of %zu", path,
			  (intmax_t)st.st_size, limit);
		return QMLA_ERR_TOO_LARGE;
	}
	buffer = malloc((size_t)st.st_size + 1);
	if (!buffer) {
		qmc_error(COMPONENT, "%s: no memory for %jd bytes", path, (intmax_t)st.st_size);
		return QMLA_ERR_NO_MEMORY;
	}
	status = read_all(fd, path, buffer, (size_t)st.st_size);
	if (status) {
		free(buffer);
		return status;
	}
	buffer[st.st_size] = 0;
	*bytes = buffer;
	*length = (size_t)st.st_size;
	return QMLA_OK;
}

qmla_status_t qmw_file_read(const char *path, size_t limit, void **bytes, size_t *length)
{
	/* Non-blocking: opening a FIFO must not hang. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	qmla_status_t status;

	if (fd < 0) {
		qmc_error(COMPONENT, "%s: %s", path, strerror(errno));
		return qmc_status_from_errno(errno);
	}
	status = read_open(fd, path, limit, bytes, length);
	close(fd);
	return status;
}

bool qmw_file_exists(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0;
}

char *qmw_path_join(const char *directory, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}
