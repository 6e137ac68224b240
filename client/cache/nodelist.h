/* SPDX-License-Identifier: Apache-2.0 */
/** @file Reads the list of nodes: "[name=]host:port[*weight],…". */
#ifndef QML_NODELIST_H
#define QML_NODELIST_H

#include <stddef.h>

#include <qmla/status.h>

#include "common/address.h"

#define QML_NODES_MAX     256
#define QML_NODE_NAME_MAX 128

struct qml_nodespec {
	char name[QML_NODE_NAME_MAX +
		  QMC_ADDRESS_TEXT_MAX];   /**< given, or the address as written */
	char target[QMC_ADDRESS_TEXT_MAX]; /**< "host:port" for gRPC */
	double weight;
};

/**
 * Parses @p text into a malloc'ed array, the caller's to free. Logs the entry at
 * fault: QMLA_ERR_INVALID_ARGUMENT for an empty list, a bad address, port 0, a
 * weight that is not a finite number > 0, or a name given twice.
 */
qmla_status_t qml_nodelist_parse(const char *text, struct qml_nodespec **nodes, size_t *count);

#endif /* QML_NODELIST_H */
