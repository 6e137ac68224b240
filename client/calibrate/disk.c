/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"

#define COMPONENT "calibrate"

qmla_status_t qmw_disk_status(int error)
{
	switch (error) {
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
	case EROFS:
		return QMLA_ERR_NO_SPACE;
	case EACCES:
	case EPERM:
		return QMLA_ERR_PERMISSION;
	case ENOENT:
	case ENOTDIR:
		return QMLA_ERR_NOT_FOUND;
	case EEXIST:
		return QMLA_ERR_ALREADY_EXISTS;
	case ENOMEM:
		return QMLA_ERR_NO_MEMORY;
	default:
		return QMLA_ERR_IO;
	}
}

static qmla_status_t fail(const char *path, const char *what)
{
	int error = errno;

	qmc_error(COMPONENT, "%s cannot be %s: %s%s", path, what, strerror(error),
		  error == ENOSPC || error == EDQUOT
			  ? "; make room and run the same command again, it continues"
			  : "");
	return qmw_disk_status(error);
}

qmla_status_t qmw_disk_write(int fd, const void *data, size_t bytes, uint64_t offset,
			     const char *path)
{
	const uint8_t *from = data;

	while (bytes > 0) {
		ssize_t put = pwrite(fd, from, bytes, (off_t)offset);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return fail(path, "written");
		from += put;
		bytes -= (size_t)put;
		offset += (uint64_t)put;
	}
	return QMLA_OK;
}

qmla_status_t qmw_disk_sync_parent(const char *path)
{
	char *copy = strdup(path);
	qmla_status_t status = QMLA_OK;
	const char *parent;
	int fd;

	if (!copy)
		return QMLA_ERR_NO_MEMORY;
	parent = dirname(copy);
	fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Some file systems do not flush directories (EINVAL); their renames are as they are. */
	if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
		status = fail(parent, "flushed");
	if (fd >= 0)
		close(fd);
	free(copy);
	return status;
}

qmla_status_t qmw_disk_publish(int fd, const char *temporary, const char *path)
{
	if (fsync(fd) != 0)
		return fail(temporary, "flushed");
	if (rename(temporary, path) != 0)
		return fail(path, "put in place");
	return qmw_disk_sync_parent(path);
}

qmla_status_t qmw_disk_save(const char *path, const void *data, size_t bytes)
{
	size_t length = strlen(path) + sizeof(".tmp");
	char *temporary = malloc(length);
	qmla_status_t status;
	int fd;

	if (!temporary)
		return QMLA_ERR_NO_MEMORY;
	snprintf(temporary, length, "%s.tmp", path);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0) {
		status = fail(temporary, "created");
		free(temporary);
		return status;
	}
	status = qmw_disk_write(fd, data, bytes, 0, temporary);
	if (status == QMLA_OK)
		status = qmw_disk_publish(fd, temporary, path);
	close(fd);
	if (status != QMLA_OK)
		unlink(temporary);
	free(temporary);
	return status;
}

qmla_status_t qmw_disk_directory(const char *path)
{
	struct stat info;

	if (mkdir(path, 0777) == 0)
		return QMLA_OK;
	if (errno != EEXIST)
		return fail(path, "created");
	if (stat(path, &info) != 0)
		return fail(path, "opened");
	if (S_ISDIR(info.st_mode))
		return QMLA_OK;
	errno = ENOTDIR;
	return fail(path, "used as a directory");
}

static bool is_dots(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool is_one_of(const char *name, const char *const *names)
{
	for (; names && *names; names++)
		if (strcmp(name, *names) == 0)
			return true;
	return false;
}

static qmla_status_t remove_below(const char *path, unsigned depth);

static qmla_status_t remove_entry(const char *path, unsigned depth)
{
	if (unlink(path) == 0)
		return QMLA_OK;
	if ((errno == EISDIR || errno == EPERM) && depth > 0)
		return remove_below(path, depth - 1);
	return fail(path, "removed");
}

/* Removes what begins with @prefix and is not in @keep. */
static qmla_status_t remove_entries(const char *path, const char *prefix, const char *const *keep,
				    unsigned depth)
{
	DIR *directory = opendir(path);
	qmla_status_t status = QMLA_OK;
	const struct dirent *entry;
	char name[4096];

	if (!directory)
		return errno == ENOENT ? QMLA_OK : fail(path, "opened");
	while (status == QMLA_OK && (entry = readdir(directory)) != NULL) {
		if (is_dots(entry->d_name) || is_one_of(entry->d_name, keep) ||
		    strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		status = remove_entry(name, depth);
	}
	closedir(directory);
	return status;
}

static qmla_status_t remove_empty(const char *path)
{
	return rmdir(path) == 0 || errno == ENOENT ? QMLA_OK : fail(path, "removed");
}

static qmla_status_t remove_below(const char *path, unsigned depth)
{
	qmla_status_t status = remove_entries(path, "", NULL, depth);

	return status == QMLA_OK ? remove_empty(path) : status;
}

qmla_status_t qmw_disk_remove(const char *path)
{
	return remove_below(path, 1);
}

qmla_status_t qmw_disk_remove_last(const char *path, const char *const *last)
{
	qmla_status_t status = remove_entries(path, "", last, 1);
	char name[4096];

	for (; status == QMLA_OK && *last; last++) {
		snprintf(name, sizeof(name), "%s/%s", path, *last);
		if (unlink(name) != 0 && errno != ENOENT)
			status = fail(name, "removed");
	}
	return status == QMLA_OK ? remove_empty(path) : status;
}

qmla_status_t qmw_disk_sweep(const char *path, const char *prefix)
{
	return remove_entries(path, prefix, NULL, 1);
}
