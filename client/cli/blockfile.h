/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One block in one file: header and pages as docs/format.md has them, generation
 * zero. A file is there whole or not at all.
 */
#ifndef QMW_BLOCKFILE_H
#define QMW_BLOCKFILE_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>

/** Memory for one block as the library wants it; free() it. */
void *qmw_blockfile_memory(uint64_t bytes);

/** Reads whose block @p path holds. Prints what is wrong: QMLA_ERR_NOT_FOUND, _IO, _CORRUPT. */
qmla_status_t qmw_blockfile_peek(const char *program, const char *path, qmla_identity_t *identity,
				 qmla_key_t *key);

/**
 * Reads and checks a whole block (every page). @p block is qmw_blockfile_memory of
 * the layout's size. Prints what is wrong; statuses of qmk_block_check, and
 * QMLA_ERR_LAYOUT_MISMATCH for a file of another size.
 */
qmla_status_t qmw_blockfile_read(const char *program, const char *path, const qmla_layout_t *layout,
				 const qmla_identity_t *identity, void *block);

/**
 * Writes through a temporary file beside @p path and renames it. "-" is standard
 * output. Prints what is wrong: QMLA_ERR_ALREADY_EXISTS (without @p replace),
 * QMLA_ERR_NO_SPACE (full or read-only), QMLA_ERR_IO; nothing is left behind then.
 */
qmla_status_t qmw_blockfile_write(const char *program, const char *path, const void *block,
				  uint64_t bytes, bool replace);

#endif /* QMW_BLOCKFILE_H */
