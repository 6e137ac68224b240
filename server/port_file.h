/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Tells whoever started the node which ports it got: the gRPC port alone on the
 * first line, then lines "name=value" (grpc, data, http, pid, node_id,
 * incarnation). Written whole or not at all.
 */
#ifndef QMS_PORT_FILE_H
#define QMS_PORT_FILE_H

#include <stdint.h>

#include <qmla/status.h>

struct qms_port_file;

struct qms_port_file_values {
	const char *node_id;
	uint64_t incarnation;
	uint16_t grpc, data, http; /**< http 0: none */
};

/** Makes sure early that @p path can be written. QMLA_ERR_NO_SPACE, QMLA_ERR_PERMISSION… Logged. */
qmla_status_t qms_port_file_create(const char *path, struct qms_port_file **file);

/** Writes the values and makes the file appear under its name. Logged. */
qmla_status_t qms_port_file_publish(struct qms_port_file *file,
				    const struct qms_port_file_values *values);

/** Removes the file if it was published here. Accepts NULL. */
void qms_port_file_destroy(struct qms_port_file *file);

#endif /* QMS_PORT_FILE_H */
