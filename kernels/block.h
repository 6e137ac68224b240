/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The header in front of a block's pages: who it belongs to, which life of its
 * slot, and a checksum a page. All fields little-endian; docs/format.md has the
 * byte map and test vectors. Any thread; nothing here blocks.
 */
#ifndef QMK_BLOCK_H
#define QMK_BLOCK_H

#include <stdint.h>

#include "kernels/layout.h"

#define QMK_KEY_BYTES         16
#define QMK_IDENTITY_BYTES    32
#define QMK_BLOCK_FIXED_BYTES 96

/** What a reader holds a block against. */
struct qmk_block_info {
	uint8_t key[QMK_KEY_BYTES];
	uint8_t identity[QMK_IDENTITY_BYTES];
	uint64_t generation; /**< of the slot, given by the node that owns it */
};

/**
 * XXH64-based tree checksum of one page: XXH64(seed 0) over the little-endian
 * XXH64(seed = chunk index) values of its 128-byte chunks. Two levels, so that a
 * GPU computes the chunks in parallel. @p bytes is a multiple of 128.
 */
uint64_t qmk_page_checksum(const void *page, size_t bytes);

/**
 * Writes the header in front of finished pages at @p block (block_bytes long):
 * fields, page checksums computed here, then the header's own checksum.
 */
void qmk_block_seal(const struct qmk_layout *layout, const struct qmk_block_info *info,
		    void *block);

/** As qmk_block_seal with page checksums that were computed elsewhere ([layers]). */
void qmk_block_seal_with(const struct qmk_layout *layout, const struct qmk_block_info *info,
			 const uint64_t *page_checksums, void *block);

/** Replaces the generation and the header checksum of a sealed block: pages untouched. */
void qmk_block_set_generation(const struct qmk_layout *layout, uint64_t generation, void *block);

/**
 * Checks magic, version, format, geometry, header checksum (QMLA_ERR_CORRUPT),
 * layout fingerprint (QMLA_ERR_LAYOUT_MISMATCH), identity
 * (QMLA_ERR_IDENTITY_MISMATCH), key and generation (QMLA_ERR_STALE).
 * A generation of zero in @p info accepts any.
 */
qmla_status_t qmk_block_check_header(const struct qmk_layout *layout,
				     const struct qmk_block_info *info, const void *block);

/** qmk_block_check_header, then every page against its checksum (QMLA_ERR_CORRUPT). */
qmla_status_t qmk_block_check(const struct qmk_layout *layout, const struct qmk_block_info *info,
			      const void *block);

/**
 * Reads whose block it is from a header of any layout: integrity is checked
 * (QMLA_ERR_CORRUPT), nothing else. @p bytes is what there is of the block;
 * QMLA_ERR_CORRUPT also when the header is longer than that.
 */
qmla_status_t qmk_block_read_info(const void *block, size_t bytes, struct qmk_block_info *info);

/** Digest over the page checksums: XXH64 of the header's checksum array; for Commit. */
uint64_t qmk_block_digest(const struct qmk_layout *layout, const void *block);

#endif /* QMK_BLOCK_H */
