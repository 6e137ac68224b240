/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/socket.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/log.h"
#include "common/status.h"

#define NAME_PREFIX "qmt-"
#define NAME_SUFFIX ".sock"
#define NAME_BYTES  8 /* random; names are never used twice */
#define RETRY_NS    (2 * QMC_NS_PER_MS)

static qmla_status_t address_of(const char *path, struct sockaddr_un *sa)
{
	size_t length = strlen(path);

	if (length >= sizeof(sa->sun_path))
		return QMLA_ERR_INVALID_ARGUMENT;
	memset(sa, 0, sizeof(*sa));
	sa->sun_family = AF_UNIX;
	memcpy(sa->sun_path, path, length + 1);
	return QMLA_OK;
}

static int open_socket(void)
{
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

/*
 * True when nobody listens at @path. A socket gets its final name only once it
 * listens (see bind_at), so a refusal means a dead server and not one that starts.
 */
static bool is_stale(const char *path)
{
	struct sockaddr_un sa;
	struct stat st;
	bool stale;
	int fd;

	if (lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode) || address_of(path, &sa) != QMLA_OK)
		return false;
	fd = open_socket();
	if (fd < 0)
		return false;
	stale = connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 && errno == ECONNREFUSED;
	close(fd);
	return stale;
}

static bool is_ours(const char *name)
{
	size_t length = strlen(name);
	size_t suffix = strlen(NAME_SUFFIX);

	return strncmp(name, NAME_PREFIX, strlen(NAME_PREFIX)) == 0 &&
	       length == strlen(NAME_PREFIX) + 2 * NAME_BYTES + suffix &&
	       strcmp(name + length - suffix, NAME_SUFFIX) == 0;
}

static void remove_stale(const char *directory)
{
	DIR *stream = opendir(directory);
	const struct dirent *entry;

	if (!stream)
		return;
	while ((entry = readdir(stream)) != NULL) {
		char path[PATH_MAX];

		if (!is_ours(entry->d_name))
			continue;
		if (snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name) >=
		    (int)sizeof(path))
			continue;
		if (is_stale(path) && unlink(path) == 0)
			qmc_info("shm", "removed %s, whose server is gone", path);
	}
	closedir(stream);
}

/* Binds to a temporary name, listens, then renames: the name appears with a listener. */
static qmla_status_t bind_at(const char *path, const char *temporary, int *out)
{
	struct sockaddr_un sa;
	int fd, error;

	if (address_of(path, &sa) != QMLA_OK || address_of(temporary, &sa) != QMLA_OK) {
		qmc_error("shm",
			  "the path %s is too long for a socket (%zu characters at most): "
			  "choose a shorter directory",
			  path, sizeof(sa.sun_path) - 1);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	fd = open_socket();
	if (fd < 0)
		return qmc_status_from_errno(errno);
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0) {
		if (listen(fd, SOMAXCONN) == 0 && rename(temporary, path) == 0) {
			*out = fd;
			return QMLA_OK;
		}
		error = errno;
		unlink(temporary);
		errno = error;
	}
	error = errno;
	close(fd);
	qmc_error("shm", "cannot make a socket at %s: %s", path, strerror(error));
	return qmc_status_from_errno(error);
}

static qmla_status_t directory_open(const char *directory, char resolved[PATH_MAX])
{
	struct stat st;

	if (mkdir(directory, 0700) < 0 && errno != EEXIST) {
		qmc_error("shm", "cannot make the directory %s: %s", directory, strerror(errno));
		return qmc_status_from_errno(errno);
	}
	/* An absolute path: peers have another working directory. */
	if (!realpath(directory, resolved) || stat(resolved, &st) < 0 || !S_ISDIR(st.st_mode)) {
		qmc_error("shm", "%s is not a directory", directory);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

qmla_status_t qmt_shm_socket_listen(const char *directory, int *fd, char path[QMT_ADDRESS_TEXT_MAX])
{
	char resolved[PATH_MAX], hex[2 * NAME_BYTES + 1];
	char final[PATH_MAX + 64], temporary[PATH_MAX + 64];
	uint8_t name[NAME_BYTES];
	qmla_status_t status = directory_open(directory, resolved);

	if (status == QMLA_OK)
		status = qmc_random_bytes(name, sizeof(name));
	if (status != QMLA_OK)
		return status;
	remove_stale(resolved);
	qmc_hex_encode(name, sizeof(name), hex);
	snprintf(final, sizeof(final), "%s/" NAME_PREFIX "%s" NAME_SUFFIX, resolved, hex);
	snprintf(temporary, sizeof(temporary), "%s/." NAME_PREFIX "%s", resolved, hex);
	status = bind_at(final, temporary, fd);
	if (status == QMLA_OK)
		snprintf(path, QMT_ADDRESS_TEXT_MAX, "%.*s", QMT_ADDRESS_TEXT_MAX - 1, final);
	return status;
}

static qmla_status_t connect_status(int error)
{
	switch (error) {
	case ENOENT:       /* another host's, or removed by an orderly end */
	case ECONNREFUSED: /* killed */
	case ENOTSOCK:
	case EPROTOTYPE:
		return QMLA_ERR_UNAVAILABLE;
	default:
		return qmc_status_from_errno(error);
	}
}

qmla_status_t qmt_shm_socket_connect(const char *path, qmc_time_t deadline, int *out)
{
	struct sockaddr_un sa;
	qmla_status_t status = address_of(path, &sa);
	int error, fd;

	if (status != QMLA_OK)
		return status;
	fd = open_socket();
	if (fd < 0)
		return qmc_status_from_errno(errno);
	while (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		error = errno;
		/* EAGAIN: the backlog is full, and poll does not tell when it no longer is. */
		if (error == EINTR || (error == EAGAIN && qmc_clock_left(deadline) > 0)) {
			qmc_clock_sleep_until(qmc_clock_after(RETRY_NS));
			continue;
		}
		close(fd);
		return error == EAGAIN ? QMLA_ERR_DEADLINE : connect_status(error);
	}
	*out = fd;
	return QMLA_OK;
}
