/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/blockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/status.h"
#include "kernels/block.h"

#define PEEK_BYTES 4096 /* holds the header of any layout */

void *qmw_blockfile_memory(uint64_t bytes)
{
	return aligned_alloc(QMK_ALIGN, (bytes + QMK_ALIGN - 1) / QMK_ALIGN * QMK_ALIGN);
}

static qmla_status_t complain(const char *program, const char *path, const char *what, int error)
{
	fprintf(stderr, "%s: %s: %s: %s\n", program, path, what, strerror(error));
	return error == EROFS ? QMLA_ERR_NO_SPACE : qmc_status_from_errno(error);
}

/* Reads up to @p room bytes; @p got is less at the end of the file. */
static qmla_status_t read_some(const char *program, const char *path, uint8_t *bytes, size_t room,
			       size_t *got)
{
	size_t used = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return complain(program, path, "cannot open", errno);
	while (used < room) {
		ssize_t n = read(fd, bytes + used, room - used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			qmla_status_t status = complain(program, path, "cannot read", errno);

			close(fd);
			return status;
		}
		if (n == 0)
			break;
		used += (size_t)n;
	}
	close(fd);
	*got = used;
	return QMLA_OK;
}

qmla_status_t qmw_blockfile_peek(const char *program, const char *path, qmla_identity_t *identity,
				 qmla_key_t *key)
{
	uint8_t header[PEEK_BYTES];
	struct qmk_block_info info;
	size_t got;
	qmla_status_t status = read_some(program, path, header, sizeof(header), &got);

	if (status != QMLA_OK)
		return status;
	status = qmk_block_read_info(header, got, &info);
	if (status != QMLA_OK) {
		fprintf(stderr, "%s: %s is no block file, or a damaged one\n", program, path);
		return status;
	}
	memcpy(identity->bytes, info.identity, sizeof(identity->bytes));
	memcpy(key->bytes, info.key, sizeof(key->bytes));
	return QMLA_OK;
}

static qmla_status_t read_whole(const char *program, const char *path, uint64_t bytes, void *block)
{
	struct stat file;
	size_t got;
	qmla_status_t status;

	if (stat(path, &file) != 0)
		return complain(program, path, "cannot open", errno);
	if (S_ISREG(file.st_mode) && (uint64_t)file.st_size != bytes) {
		fprintf(stderr, "%s: %s has %lld bytes, a block of this layout has %llu\n", program,
			path, (long long)file.st_size, (unsigned long long)bytes);
		return QMLA_ERR_LAYOUT_MISMATCH;
	}
	status = read_some(program, path, block, bytes, &got);
	if (status == QMLA_OK && got != bytes) {
		fprintf(stderr, "%s: %s ends after %zu bytes\n", program, path, got);
		return QMLA_ERR_CORRUPT;
	}
	return status;
}

qmla_status_t qmw_blockfile_read(const char *program, const char *path, const qmla_layout_t *layout,
				 const qmla_identity_t *identity, void *block)
{
	struct qmk_layout bytes;
	struct qmk_block_info info;
	qmla_status_t status = qmk_layout_init((enum qmk_format)layout->format, layout->layers,
					       layout->content_dim, layout->rope_dim, &bytes);

	if (status == QMLA_OK)
		status = read_whole(program, path, bytes.block_bytes, block);
	if (status != QMLA_OK)
		return status;
	status = qmk_block_read_info(block, bytes.block_bytes, &info);
	if (status == QMLA_OK) {
		info.generation = 0;
		memcpy(info.identity, identity->bytes, sizeof(info.identity));
		status = qmk_block_check(&bytes, &info, block);
	}
	if (status != QMLA_OK)
		fprintf(stderr, "%s: %s: %s\n", program, path, qmla_status_text(status));
	return status;
}

static int write_all(int fd, const uint8_t *bytes, size_t count)
{
	while (count > 0) {
		ssize_t n = write(fd, bytes, count);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		bytes += n;
		count -= (size_t)n;
	}
	return 0;
}

/* What mkstemp made is private; the file gets what any new file would get. */
static void open_mode(int fd)
{
	mode_t mask = umask(0);

	umask(mask);
	(void)fchmod(fd, 0666 & ~mask);
}

static qmla_status_t write_beside(const char *program, const char *path, char *temporary,
				  const void *block, uint64_t bytes)
{
	int error, fd = mkstemp(temporary);

	if (fd < 0)
		return complain(program, path, "cannot write there", errno);
	open_mode(fd);
	error = write_all(fd, block, bytes);
	/* Some file systems tell a full disk only when the bytes are to stay. */
	if (!error && fdatasync(fd) != 0 && errno != EINVAL)
		error = errno;
	if (close(fd) != 0 && !error)
		error = errno;
	if (!error && rename(temporary, path) != 0)
		error = errno;
	if (!error)
		return QMLA_OK;
	unlink(temporary);
	return complain(program, path, "cannot write", error);
}

qmla_status_t qmw_blockfile_write(const char *program, const char *path, const void *block,
				  uint64_t bytes, bool replace)
{
	size_t room = strlen(path) + 16;
	char *temporary;
	qmla_status_t status;

	if (strcmp(path, "-") == 0) {
		int error = write_all(STDOUT_FILENO, block, bytes);

		return error ? complain(program, "standard output", "cannot write", error)
			     : QMLA_OK;
	}
	if (!replace && access(path, F_OK) == 0) {
		fprintf(stderr, "%s: %s is there already; --force replaces it\n", program, path);
		return QMLA_ERR_ALREADY_EXISTS;
	}
	temporary = malloc(room);
	if (!temporary)
		return QMLA_ERR_NO_MEMORY;
	snprintf(temporary, room, "%s.part-XXXXXX", path);
	status = write_beside(program, path, temporary, block, bytes);
	free(temporary);
	return status;
}
