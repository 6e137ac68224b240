/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/fuse_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "client/model/file.h"
#include "common/log.h"
#include "common/status.h"

#define COMPONENT   "fuse"
#define COPY_LIMIT  ((size_t)1 << 30)
#define GIGABYTE    1e9
#define OPEN_CREATE (O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC)

struct qmw_fuse_files {
	char *output, *partial;
	bool made; /**< partial is there */
};

static qmla_status_t fail(const char *path, const char *what)
{
	int error = errno;

	qmc_error(COMPONENT, "%s: %s: %s", path, what, strerror(error));
	return qmc_status_from_errno(error);
}

static qmla_status_t check_output(const char *output)
{
	DIR *directory = opendir(output);
	const struct dirent *entry;
	bool empty = true;

	if (!directory && errno == ENOENT)
		return QMLA_OK;
	if (!directory && errno != ENOTDIR)
		return fail(output, "cannot be read");
	while (directory && (entry = readdir(directory)))
		empty = empty &&
			(strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
	if (directory)
		closedir(directory);
	if (directory && empty)
		return QMLA_OK;
	qmc_error(COMPONENT, "%s is there already; give a new directory, or remove it", output);
	return QMLA_ERR_ALREADY_EXISTS;
}

static qmla_status_t check_space(const char *directory, uint64_t bytes)
{
	struct statvfs fs;
	uint64_t free_bytes;

	if (statvfs(directory, &fs) != 0)
		return fail(directory, "its file system cannot be asked");
	free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (free_bytes >= bytes)
		return QMLA_OK;
	qmc_error(COMPONENT, "%s: %.2f GB are needed and %.2f GB are free: make room", directory,
		  (double)bytes / GIGABYTE, (double)free_bytes / GIGABYTE);
	return QMLA_ERR_NO_SPACE;
}

/* mkdtemp's 0700 becomes what mkdir would have given. */
static qmla_status_t open_up(const char *directory)
{
	mode_t mask = umask(0);

	umask(mask);
	return chmod(directory, 0777 & ~mask) == 0 ? QMLA_OK
						   : fail(directory, "its mode cannot be set");
}

qmla_status_t qmw_fuse_files_begin(const char *output, uint64_t bytes,
				   struct qmw_fuse_files **files)
{
	struct qmw_fuse_files *self = calloc(1, sizeof(*self));
	size_t length = strlen(output);
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	while (length > 1 && output[length - 1] == '/')
		length--;
	self->output = strndup(output, length);
	if (!self->output ||
	    asprintf(&self->partial, "%s" QMW_FUSE_PARTIAL "XXXXXX", self->output) < 0)
		goto err;
	status = check_output(self->output);
	if (!status && !mkdtemp(self->partial))
		status = fail(self->partial, "cannot be made");
	if (status)
		goto err;
	self->made = true;
	status = open_up(self->partial);
	if (!status)
		status = check_space(self->partial, bytes);
	if (status)
		goto err;
	*files = self;
	return QMLA_OK;
err:
	qmw_fuse_files_destroy(self);
	return status;
}

char *qmw_fuse_files_path(const struct qmw_fuse_files *files, const char *name)
{
	return qmw_path_join(files->partial, name);
}

const char *qmw_fuse_files_directory(const struct qmw_fuse_files *files)
{
	return files->partial;
}

static qmla_status_t put(int fd, const char *path, const void *bytes, size_t length)
{
	const char *from = bytes;
	size_t done = 0;

	while (done < length) {
		ssize_t n = write(fd, from + done, length - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(path, "cannot be written");
		done += (size_t)n;
	}
	return fsync(fd) == 0 ? QMLA_OK : fail(path, "cannot be written to the disk");
}

qmla_status_t qmw_fuse_files_write(const struct qmw_fuse_files *files, const char *name,
				   const void *bytes, size_t length)
{
	char *path = qmw_fuse_files_path(files, name);
	qmla_status_t status;
	int fd;

	if (!path)
		return QMLA_ERR_NO_MEMORY;
	fd = open(path, OPEN_CREATE, 0666);
	status = fd < 0 ? fail(path, "cannot be created") : put(fd, path, bytes, length);
	if (fd >= 0 && close(fd) != 0 && !status)
		status = fail(path, "cannot be closed");
	free(path);
	return status;
}

static bool ends_with(const char *name, const char *suffix)
{
	size_t n = strlen(name), m = strlen(suffix);

	return n >= m && strcmp(name + n - m, suffix) == 0;
}

static bool is_wanted(const char *name)
{
	static const char *const weights[] = {".safetensors", ".bin",  ".pt",      ".pth", ".ckpt",
					      ".h5",          ".gguf", ".msgpack", ".onnx"};

	if (name[0] == '.' || strncmp(name, "quantmla.", 9) == 0)
		return false;
	for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
		if (ends_with(name, weights[i]))
			return false;
	return true;
}

static qmla_status_t copy_one(const struct qmw_fuse_files *files, const char *source,
			      const char *name)
{
	char *path = qmw_path_join(source, name);
	struct stat st;
	void *bytes = NULL;
	size_t length;
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status && stat(path, &st) != 0)
		status = fail(path, "cannot be read");
	if (!status && !S_ISREG(st.st_mode)) {
		qmc_info(COMPONENT, "%s is no plain file and was not copied", path);
		free(path);
		return QMLA_OK;
	}
	if (!status)
		status = qmw_file_read(path, COPY_LIMIT, &bytes, &length);
	if (!status)
		status = qmw_fuse_files_write(files, name, bytes, length);
	free(bytes);
	free(path);
	return status;
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

qmla_status_t qmw_fuse_files_copy(const struct qmw_fuse_files *files, const char *source)
{
	struct dirent **list;
	int count = scandir(source, &list, NULL, compare_names);
	qmla_status_t status = QMLA_OK;

	if (count < 0)
		return fail(source, "cannot be read");
	for (int i = 0; i < count; i++) {
		const char *name = list[i]->d_name;

		if (!status && is_wanted(name))
			status = copy_one(files, source, name);
		else if (!status && name[0] != '.' && strncmp(name, "quantmla.", 9) != 0 &&
			 !ends_with(name, ".safetensors"))
			qmc_info(COMPONENT, "%s/%s was not copied: other weights", source, name);
		free(list[i]);
	}
	free(list);
	return status;
}

static qmla_status_t sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	qmla_status_t status;

	if (fd < 0)
		return fail(path, "cannot be opened");
	status = fsync(fd) == 0 ? QMLA_OK : fail(path, "cannot be written to the disk");
	close(fd);
	return status;
}

/* The directory that @p path is an entry of, malloc'ed. */
static char *parent_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return strdup(".");
	return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

qmla_status_t qmw_fuse_files_commit(struct qmw_fuse_files *files)
{
	char *parent = parent_of(files->output);
	qmla_status_t status = parent ? sync_directory(files->partial) : QMLA_ERR_NO_MEMORY;

	if (!status && rename(files->partial, files->output) != 0)
		status = fail(files->output, "cannot take its place");
	if (!status) {
		files->made = false;
		status = sync_directory(parent);
	}
	free(parent);
	return status;
}

static void remove_directory(const char *path)
{
	struct dirent **list;
	int count = scandir(path, &list, NULL, NULL);

	for (int i = 0; i < count; i++) {
		char *file = qmw_path_join(path, list[i]->d_name);

		if (file && strcmp(list[i]->d_name, ".") != 0 && strcmp(list[i]->d_name, "..") != 0)
			unlink(file);
		free(file);
		free(list[i]);
	}
	if (count >= 0)
		free(list);
	if (rmdir(path) != 0)
		qmc_warn(COMPONENT, "%s could not be removed: %s", path, strerror(errno));
}

void qmw_fuse_files_destroy(struct qmw_fuse_files *files)
{
	if (!files)
		return;
	if (files->made)
		remove_directory(files->partial);
	free(files->output);
	free(files->partial);
	free(files);
}
