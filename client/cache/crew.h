/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Helper threads of a client: started when first needed, asleep otherwise. The
 * caller of a job works on it too, so a job makes progress with no helper free.
 */
#ifndef QML_CREW_H
#define QML_CREW_H

#include <stddef.h>

#include <qmla/status.h>

struct qml_crew;

typedef void (*qml_crew_func_t)(void *item);

/** A crew that grows to at most @p most_threads helpers. QMLA_ERR_NO_MEMORY. */
qmla_status_t qml_crew_create(size_t most_threads, struct qml_crew **crew);
void qml_crew_destroy(struct qml_crew *crew); /**< joins; accepts NULL; no job may be running */

/** Runs @p work on each of @p items, several at a time; returns when all are done. */
void qml_crew_run(struct qml_crew *crew, qml_crew_func_t work, void *const *items, size_t count);

#endif /* QML_CREW_H */
