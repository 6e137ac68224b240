/* SPDX-License-Identifier: Apache-2.0 */
/** @file How much memory the process may take: for a clear error at start instead of a kill later.
 */
#ifndef QMS_MEMORY_LIMIT_H
#define QMS_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

struct qms_memory_limit {
	uint64_t bytes;     /**< UINT64_MAX: unknown */
	const char *source; /**< what says so, for a message */
};

/**
 * The least of MemAvailable, what the control group (v1 or v2) still allows and
 * RLIMIT_AS. @p root is "" or, in tests, a directory that holds proc and sys.
 */
void qms_memory_limit_read(const char *root, struct qms_memory_limit *limit);

/** Free 2 MiB pages, in bytes. */
uint64_t qms_memory_huge_pages(const char *root);

/** QMLA_ERR_NO_MEMORY, logged with both numbers and the remedy, when @p wanted is more than there
 * is. */
qmla_status_t qms_memory_limit_check(uint64_t wanted, bool huge_pages);

#endif /* QMS_MEMORY_LIMIT_H */
