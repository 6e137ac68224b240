/* SPDX-License-Identifier: Apache-2.0 */
/** @file The node as a process: start, signals, drain, end. */
#ifndef QMS_NODE_H
#define QMS_NODE_H

#include "server/node_options.h"

/**
 * Runs a node until a signal ends it; SIGTERM, SIGINT and SIGHUP must be blocked
 * in every thread. Returns the exit status of the process.
 */
int qms_node_run(struct qms_node_options *options);

#endif /* QMS_NODE_H */
