/* SPDX-License-Identifier: Apache-2.0 */
/** @file Threads of a library: they take none of the host program's signals. */
#ifndef QML_THREAD_H
#define QML_THREAD_H

#include <pthread.h>

#include <qmla/status.h>

/** Starts a joinable thread with every signal blocked. QMLA_ERR_NO_MEMORY (logged). */
qmla_status_t qml_thread_start(pthread_t *thread, void *(*run)(void *), void *user);

/** A condition whose timed waits are on CLOCK_MONOTONIC. */
void qml_cond_init(pthread_cond_t *cond);

#endif /* QML_THREAD_H */
