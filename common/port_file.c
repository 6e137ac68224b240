/* SPDX-License-Identifier: Apache-2.0 */
#include "common/port_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"

struct qmc_port_file {
	char *path;
	char *temporary;
	FILE *stream;
	bool published;
	dev_t device; /* of the published file, to know it again */
	ino_t inode;
};

static qmla_status_t complain(const struct qmc_port_file *file, const char *what)
{
	int error = errno;

	qmc_error("port-file", "--port-file %s: cannot %s: %s; choose a place that can be written",
		  file->path, what, strerror(error));
	return qmc_status_from_errno(error);
}

qmla_status_t qmc_port_file_create(const char *path, struct qmc_port_file **file)
{
	struct qmc_port_file *made = calloc(1, sizeof(*made));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;
	int fd;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->path = strdup(path);
	if (!made->path || asprintf(&made->temporary, "%s.XXXXXX", path) < 0) {
		made->temporary = NULL;
		goto err_destroy;
	}
	fd = mkstemp(made->temporary);
	if (fd < 0) {
		status = complain(made, "make a file beside it");
		free(made->temporary);
		made->temporary = NULL;
		goto err_destroy;
	}
	made->stream = fdopen(fd, "w");
	if (!made->stream) {
		close(fd);
		goto err_destroy;
	}
	*file = made;
	return QMLA_OK;

err_destroy:
	qmc_port_file_destroy(made);
	return status;
}

static void write_values(FILE *stream, const struct qmc_port_file_values *values)
{
	fprintf(stream, "%u\ngrpc=%u\n", values->grpc, values->grpc);
	if (values->data)
		fprintf(stream, "data=%u\n", values->data);
	if (values->http)
		fprintf(stream, "http=%u\n", values->http);
	fprintf(stream, "pid=%ld\n", (long)getpid());
	if (values->node_id)
		fprintf(stream, "node_id=%s\nincarnation=%016llx\n", values->node_id,
			(unsigned long long)values->incarnation);
}

qmla_status_t qmc_port_file_publish(struct qmc_port_file *file,
				    const struct qmc_port_file_values *values)
{
	FILE *stream = file->stream;
	struct stat made = {0};
	int rc;

	write_values(stream, values);
	rc = fflush(stream) | ferror(stream) | fstat(fileno(stream), &made);
	file->stream = NULL;
	if (fclose(stream) != 0 || rc)
		return complain(file, "write it");
	if (rename(file->temporary, file->path) != 0)
		return complain(file, "put it in place");
	file->device = made.st_dev;
	file->inode = made.st_ino;
	file->published = true;
	return QMLA_OK;
}

void qmc_port_file_remove(const struct qmc_port_file *file)
{
	struct stat now;

	if (file && file->published && stat(file->path, &now) == 0 && now.st_dev == file->device &&
	    now.st_ino == file->inode)
		unlink(file->path);
}

void qmc_port_file_destroy(struct qmc_port_file *file)
{
	if (!file)
		return;
	if (file->stream)
		fclose(file->stream);
	qmc_port_file_remove(file);
	if (!file->published && file->temporary)
		unlink(file->temporary);
	free(file->temporary);
	free(file->path);
	free(file);
}
