/* SPDX-License-Identifier: Apache-2.0 */
#include "server/port_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"

struct qms_port_file {
	char *path;
	char *temporary;
	FILE *stream;
	bool published;
};

static qmla_status_t complain(const struct qms_port_file *file, const char *what)
{
	int error = errno;

	qmc_error("node", "--port-file %s: cannot %s: %s; choose a place that can be written",
		  file->path, what, strerror(error));
	return qmc_status_from_errno(error);
}

qmla_status_t qms_port_file_create(const char *path, struct qms_port_file **file)
{
	struct qms_port_file *made = calloc(1, sizeof(*made));
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
	qms_port_file_destroy(made);
	return status;
}

qmla_status_t qms_port_file_publish(struct qms_port_file *file,
				    const struct qms_port_file_values *values)
{
	FILE *stream = file->stream;
	int rc;

	fprintf(stream, "%u\ngrpc=%u\ndata=%u\n", values->grpc, values->grpc, values->data);
	if (values->http)
		fprintf(stream, "http=%u\n", values->http);
	fprintf(stream, "pid=%ld\nnode_id=%s\nincarnation=%016llx\n", (long)getpid(),
		values->node_id, (unsigned long long)values->incarnation);
	rc = ferror(stream);
	file->stream = NULL;
	if (fclose(stream) != 0 || rc)
		return complain(file, "write it");
	if (rename(file->temporary, file->path) != 0)
		return complain(file, "put it in place");
	file->published = true;
	return QMLA_OK;
}

void qms_port_file_destroy(struct qms_port_file *file)
{
	if (!file)
		return;
	if (file->stream)
		fclose(file->stream);
	if (file->published)
		unlink(file->path);
	else if (file->temporary)
		unlink(file->temporary);
	free(file->temporary);
	free(file->path);
	free(file);
}
