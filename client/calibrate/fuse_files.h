/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A checkpoint directory that appears as a whole or not at all: it grows under another
 * name beside the final one. All functions log the path at fault and block.
 */
#ifndef QMW_FUSE_FILES_H
#define QMW_FUSE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

/** Behind the final name while it grows, with six further characters. */
#define QMW_FUSE_PARTIAL ".partial-"

struct qmw_fuse_files;

/**
 * Begins @p output, for which @p bytes are needed. QMLA_ERR_ALREADY_EXISTS (something is there that
 * is no empty directory), QMLA_ERR_NOT_FOUND (its parent), QMLA_ERR_PERMISSION, QMLA_ERR_NO_SPACE.
 */
qmla_status_t qmw_fuse_files_begin(const char *output, uint64_t bytes,
				   struct qmw_fuse_files **files);

/** malloc'ed path of file @p name while it is being made, NULL without memory. */
char *qmw_fuse_files_path(const struct qmw_fuse_files *files, const char *name);

/** The directory while it is being made; the files'. */
const char *qmw_fuse_files_directory(const struct qmw_fuse_files *files);

/** Writes a whole file. */
qmla_status_t qmw_fuse_files_write(const struct qmw_fuse_files *files, const char *name,
				   const void *bytes, size_t length);

/**
 * Copies the plain files of @p source but weights in any format (they are not the fused ones),
 * quantmla.* and hidden files. What is left out is logged.
 */
qmla_status_t qmw_fuse_files_copy(const struct qmw_fuse_files *files, const char *source);

/** Syncs the directory and gives it its name. */
qmla_status_t qmw_fuse_files_commit(struct qmw_fuse_files *files);

/** Removes what was not committed. Accepts NULL. */
void qmw_fuse_files_destroy(struct qmw_fuse_files *files);

#endif /* QMW_FUSE_FILES_H */
