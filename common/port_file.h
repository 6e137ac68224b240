/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Tells whoever started a server which ports it got: the gRPC port alone on the
 * first line, then lines "name=value" (grpc, data, http, pid, node_id,
 * incarnation; those that it has). Written whole or not at all.
 *
 * Threads: one at a time.
 */
#ifndef QMC_PORT_FILE_H
#define QMC_PORT_FILE_H

#include <stdint.h>

#include <qmla/status.h>

struct qmc_port_file;

struct qmc_port_file_values {
	const char *node_id;       /**< NULL: none, and no incarnation */
	uint64_t incarnation;      /**< told with node_id only */
	uint16_t grpc, data, http; /**< data, http: 0: none */
};

/** Makes sure early that @p path can be written. QMLA_ERR_NO_SPACE, QMLA_ERR_PERMISSION… Logged. */
qmla_status_t qmc_port_file_create(const char *path, struct qmc_port_file **file);

/** Writes the values and makes the file appear under its name. Logged. */
qmla_status_t qmc_port_file_publish(struct qmc_port_file *file,
				    const struct qmc_port_file_values *values);

/**
 * Removes the file if it was published here and is still the one that was: another
 * process may have put its own there. Accepts NULL. Async-signal-safe.
 */
void qmc_port_file_remove(const struct qmc_port_file *file);

/** Removes the file as above, frees. Accepts NULL. */
void qmc_port_file_destroy(struct qmc_port_file *file);

#endif /* QMC_PORT_FILE_H */
