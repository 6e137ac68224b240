/* SPDX-License-Identifier: Apache-2.0 */
/** @file A full memory barrier between memory that is shared and a system call. */
#ifndef QMT_BARRIER_H
#define QMT_BARRIER_H

/**
 * No load or store before it is seen after one that follows it, by any process.
 * Not atomic_thread_fence: ThreadSanitizer does not know that one, and nothing
 * that it watches depends on this.
 */
static inline void qmt_barrier(void)
{
	__sync_synchronize();
}

#endif /* QMT_BARRIER_H */
