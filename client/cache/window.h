/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A window of blocks being published together: Reserve on every node, write,
 * Commit. Blocks are committed only up to the first one that failed, so a window
 * leaves no hole behind it; tickets past that are aborted.
 *
 * A block may have several copies (replicas); it is as well off as its best one.
 */
#ifndef QML_WINDOW_H
#define QML_WINDOW_H

#include "client/cache/client.h"

struct qml_window {
	qmla_client_t *client;
	const qmla_key_t *keys;    /**< of the whole call */
	const void *const *blocks; /**< likewise */
	qmla_status_t *statuses;   /**< likewise; the window's own are written */
	size_t first, count;       /**< the window */
	qmc_time_t deadline;
	uint32_t retry_after_ms; /**< out: hint of a full node, 0: none */
};

/** QMLA_OK when the window was worked on: statuses say how. QMLA_ERR_NO_MEMORY. Blocks. */
qmla_status_t qml_window_run(struct qml_window *window);

#endif /* QML_WINDOW_H */
