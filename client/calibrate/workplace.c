/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/workplace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "client/calibrate/disk.h"
#include "client/calibrate/fingerprint.h"
#include "client/model/constants.h"
#include "client/model/file.h"
#include "common/log.h"

#define COMPONENT "calibrate"
#define SUFFIX    ".calibrate"
#define RUN_LIMIT ((size_t)16 << 20)
#define RUN_NAME  "run.json"
#define LOCK_NAME "lock"

struct qmw_workplace {
	char *output; /* without trailing slashes */
	char *folder;
	char *run; /* the text of run.json */
	int lock;
	bool resumed, force;
};

static char *join3(const char *a, const char *b, const char *c)
{
	size_t length = strlen(a) + strlen(b) + strlen(c) + 1;
	char *text = malloc(length);

	if (text)
		snprintf(text, length, "%s%s%s", a, b, c);
	return text;
}

static char *without_slashes(const char *path)
{
	char *copy = strdup(path);
	size_t length = copy ? strlen(copy) : 0;

	while (length > 1 && copy[length - 1] == '/')
		copy[--length] = 0;
	return copy;
}

/* Constants of version 1 lie beside original weights; 2 says that a calibration wrote these. */
static bool is_fused(const char *path)
{
	char *about = join3(path, "/", "quantmla.json");
	struct qmw_constants constants;
	void *text = NULL;
	size_t length;
	bool fused = about && qmw_file_read(about, RUN_LIMIT, &text, &length) == QMLA_OK &&
		     qmw_constants_parse(text, length, about, &constants) == QMLA_OK &&
		     constants.version == 2;

	free(text);
	free(about);
	return fused;
}

/* 0: nothing there or an empty directory, 1: a former calibration, 2: something else. */
static int look_at(const char *path)
{
	DIR *directory = opendir(path);
	const struct dirent *entry;
	bool empty = true, about = false;

	if (!directory)
		return errno == ENOENT ? 0 : 2;
	while ((entry = readdir(directory)) != NULL) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		empty = false;
		about = about || strcmp(entry->d_name, "quantmla.json") == 0;
	}
	closedir(directory);
	if (empty)
		return 0;
	return about && is_fused(path) ? 1 : 2;
}

static qmla_status_t check_output(const struct qmw_workplace *self, const char *model, bool force)
{
	struct stat a, b;
	int kind = look_at(self->output);

	if (stat(model, &a) == 0 && stat(self->output, &b) == 0 && a.st_dev == b.st_dev &&
	    a.st_ino == b.st_ino) {
		qmc_error(COMPONENT, "--out %s is the model itself: name another directory",
			  self->output);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (kind == 0 || (kind == 1 && force))
		return QMLA_OK;
	if (kind == 1)
		qmc_error(COMPONENT,
			  "%s holds a calibrated checkpoint already: --force replaces it",
			  self->output);
	else
		qmc_error(COMPONENT,
			  "%s exists and is neither empty nor a checkpoint that a calibration "
			  "wrote (quantmla.json of version 2): name another directory",
			  self->output);
	return QMLA_ERR_ALREADY_EXISTS;
}

static qmla_status_t take_lock(struct qmw_workplace *self)
{
	char *path = join3(self->folder, "/", LOCK_NAME);
	qmla_status_t status = QMLA_OK;

	if (!path)
		return QMLA_ERR_NO_MEMORY;
	self->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (self->lock < 0) {
		status = qmw_disk_status(errno);
		qmc_error(COMPONENT, "%s cannot be created: %s", path, strerror(errno));
	} else if (flock(self->lock, LOCK_EX | LOCK_NB) != 0) {
		status = QMLA_ERR_BUSY;
		qmc_error(COMPONENT, "another process calibrates in %s: wait for it or stop it",
			  self->folder);
	}
	free(path);
	return status;
}

/* run.json goes after what it vouches for, so that a half-removed folder is known as ours. */
static qmla_status_t remove_folder(const char *folder)
{
	static const char *const last[] = {RUN_NAME, LOCK_NAME, NULL};

	return qmw_disk_remove_last(folder, last);
}

/* Files of another run are of no use: all but the lock go. */
static qmla_status_t clear_folder(struct qmw_workplace *self)
{
	qmla_status_t status = remove_folder(self->folder);

	if (status == QMLA_OK)
		status = qmw_disk_directory(self->folder);
	if (self->lock >= 0)
		close(self->lock);
	self->lock = -1;
	return status == QMLA_OK ? take_lock(self) : status;
}

/* Only what a run left there before it wrote run.json may lie in a folder without one. */
static bool is_ours(const char *folder)
{
	DIR *directory = opendir(folder);
	const struct dirent *entry;
	bool ours = directory != NULL;

	while (ours && (entry = readdir(directory)) != NULL)
		ours = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
		       strcmp(entry->d_name, LOCK_NAME) == 0 ||
		       strcmp(entry->d_name, RUN_NAME ".tmp") == 0;
	if (directory)
		closedir(directory);
	return ours;
}

static qmla_status_t begin_or_resume(struct qmw_workplace *self)
{
	char *path = join3(self->folder, "/", RUN_NAME);
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	void *found = NULL;
	size_t bytes = 0;

	if (status == QMLA_OK && qmw_file_exists(path)) {
		status = qmw_file_read(path, RUN_LIMIT, &found, &bytes);
		self->resumed = status == QMLA_OK && bytes == strlen(self->run) &&
				memcmp(found, self->run, bytes) == 0;
		if (status == QMLA_OK && !self->resumed && !self->force) {
			qmc_error(COMPONENT,
				  "%s belongs to a run with another model, text or options (%s): "
				  "run that one again to continue it, or give --force to start "
				  "over",
				  self->folder, path);
			status = QMLA_ERR_ALREADY_EXISTS;
		}
	} else if (status == QMLA_OK && !is_ours(self->folder)) {
		qmc_error(COMPONENT,
			  "%s is needed as a work folder, but something else lies there: move it "
			  "away or name another --out",
			  self->folder);
		status = QMLA_ERR_ALREADY_EXISTS;
	}
	free(found);
	if (status == QMLA_OK && !self->resumed) {
		status = clear_folder(self);
		if (status == QMLA_OK)
			status = qmw_disk_save(path, self->run, strlen(self->run));
	}
	free(path);
	return status;
}

qmla_status_t qmw_workplace_open(const struct qmw_workplace_options *options,
				 struct qmw_workplace **workplace)
{
	struct qmw_workplace *self = calloc(1, sizeof(*self));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->lock = -1;
	self->force = options->force;
	self->output = without_slashes(options->output);
	if (self->output)
		self->folder = join3(self->output, SUFFIX, "");
	if (self->folder)
		status = check_output(self, options->model, options->force);
	if (status == QMLA_OK)
		status = qmw_fingerprint_text(options->model, options->run, &self->run);
	if (status == QMLA_OK)
		status = qmw_disk_directory(self->folder);
	if (status == QMLA_OK)
		status = take_lock(self);
	if (status == QMLA_OK)
		status = begin_or_resume(self);
	if (status != QMLA_OK) {
		qmw_workplace_close(self);
		return status;
	}
	*workplace = self;
	return QMLA_OK;
}

void qmw_workplace_close(struct qmw_workplace *workplace)
{
	if (!workplace)
		return;
	if (workplace->lock >= 0)
		close(workplace->lock);
	free(workplace->run);
	free(workplace->folder);
	free(workplace->output);
	free(workplace);
}

bool qmw_workplace_resumed(const struct qmw_workplace *workplace)
{
	return workplace->resumed;
}

char *qmw_workplace_path(const struct qmw_workplace *workplace, const char *name, uint32_t number)
{
	const char *mark = strchr(name, '#');
	size_t length = strlen(workplace->folder) + strlen(name) + 16;
	char *path = malloc(length);

	if (path && mark)
		snprintf(path, length, "%s/%.*s%03" PRIu32 "%s", workplace->folder,
			 (int)(mark - name), name, number, mark + 1);
	else if (path)
		snprintf(path, length, "%s/%s", workplace->folder, name);
	return path;
}

qmla_status_t qmw_workplace_tag(const struct qmw_workplace *workplace, const char *name,
				uint32_t number, uint8_t tag[QMC_SHA256_BYTES])
{
	struct qmc_sha256 *hash;
	qmla_status_t status = qmc_sha256_create(&hash);

	if (status != QMLA_OK)
		return status;
	status = qmc_sha256_update(hash, workplace->run, strlen(workplace->run) + 1);
	if (status == QMLA_OK)
		status = qmc_sha256_update(hash, name, strlen(name) + 1);
	if (status == QMLA_OK)
		status = qmc_sha256_update(hash, &number, sizeof(number));
	if (status == QMLA_OK)
		status = qmc_sha256_finish(hash, tag);
	qmc_sha256_destroy(hash);
	return status;
}

void qmw_workplace_drop(const struct qmw_workplace *workplace, const char *name, uint32_t number)
{
	char *path = qmw_workplace_path(workplace, name, number);

	if (path)
		unlink(path);
	free(path);
}

qmla_status_t qmw_workplace_sweep(const struct qmw_workplace *workplace, const char *prefix)
{
	return qmw_disk_sweep(workplace->folder, prefix);
}

qmla_status_t qmw_workplace_room(const struct qmw_workplace *workplace, uint64_t bytes)
{
	struct statvfs info;
	uint64_t free_bytes;

	if (statvfs(workplace->folder, &info) != 0)
		return QMLA_OK; /* not knowing is no reason to refuse */
	free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
	if (free_bytes >= bytes)
		return QMLA_OK;
	qmc_error(COMPONENT,
		  "%s: %" PRIu64 " MiB are needed there and %" PRIu64
		  " MiB are free: make room, put --out on another file system, or take fewer or "
		  "shorter sequences",
		  workplace->folder, (bytes >> 20) + 1, free_bytes >> 20);
	return QMLA_ERR_NO_SPACE;
}

/* An old calibration steps aside first and goes last, so that one of them is always there. */
static qmla_status_t exchange(const struct qmw_workplace *workplace, const char *fused,
			      const char *aside)
{
	bool old = look_at(workplace->output) == 1;

	/* A run that was killed between the renames may have left one. */
	if (old && qmw_disk_remove(aside) != QMLA_OK)
		return QMLA_ERR_IO;
	if (old && rename(workplace->output, aside) != 0)
		goto err_rename;
	if (rename(fused, workplace->output) == 0)
		return QMLA_OK;
	if (old && rename(aside, workplace->output) != 0)
		qmc_error(COMPONENT, "the former %s is now %s", workplace->output, aside);
err_rename:
	qmc_error(COMPONENT, "%s cannot be put in place: %s", workplace->output, strerror(errno));
	return qmw_disk_status(errno);
}

qmla_status_t qmw_workplace_deliver(struct qmw_workplace *workplace, const char *name)
{
	char *fused = qmw_workplace_path(workplace, name, 0);
	char *aside = qmw_workplace_path(workplace, "replaced", 0);
	qmla_status_t status = fused && aside ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (status == QMLA_OK)
		status = exchange(workplace, fused, aside);
	if (status == QMLA_OK)
		status = qmw_disk_sync_parent(workplace->output);
	free(aside);
	free(fused);
	/* The output is there: a folder that cannot be removed is no failure of the run. */
	if (status == QMLA_OK && remove_folder(workplace->folder) != QMLA_OK)
		qmc_warn(COMPONENT, "%s is of no use any more and can be removed",
			 workplace->folder);
	return status;
}
