/* SPDX-License-Identifier: Apache-2.0 */
/** @file One round of a search (search.h): every sought key's candidate is asked, all nodes at
 * once. */
#ifndef QML_ROUND_H
#define QML_ROUND_H

#include "client/cache/search.h"

/**
 * Asks about the sought keys before @p limit and takes the answers into the
 * search. @p asked is false when there was nothing to ask. QMLA_ERR_NO_MEMORY.
 * Blocks until the search's deadline at most.
 */
qmla_status_t qml_round_run(struct qml_search *search, size_t limit, bool *asked);

#endif /* QML_ROUND_H */
