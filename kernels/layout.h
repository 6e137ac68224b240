/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The bytes of a page and of a block; docs/format.md is the normative text.
 *
 * A block is 64 consecutive tokens of one sequence, all layers, contiguous:
 *
 *   header (multiple of 128 B) | page of layer 0 | page of layer 1 | …
 *
 * A page holds planes, each 64 rows, one a token:
 *
 *   C4R4, C2R4:  content codes | RoPE codes | content scales fp16 | RoPE scales fp16
 *   paper-c4r4:  content codes | RoPE codes | records of scales and zero points
 *
 * Inside a row of codes the 16-byte chunks are permuted for the GPU's shared
 * memory: chunk c of token t stands at c ^ (rev3(t & 7) & (low - 1)), where rev3
 * reverses three bits and low is the largest power of two that divides the
 * number of chunks in the row.
 */
#ifndef QMK_LAYOUT_H
#define QMK_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#define QMK_PAGE_TOKENS     64u
#define QMK_FORMAT_VERSION  1u
#define QMK_MAX_LAYERS      256u
#define QMK_MAX_CONTENT_DIM 1024u
#define QMK_MAX_ROPE_DIM    128u
#define QMK_ALIGN           128u
#define QMK_PAPER_GROUP     64u /**< coordinates that share a scale in paper-c4r4 */

enum qmk_format {
	QMK_FORMAT_C4R4 = 1,       /**< 292 B a token and layer at 512|64: the default */
	QMK_FORMAT_C2R4 = 2,       /**< 164 B */
	QMK_FORMAT_PAPER_C4R4 = 3, /**< 320 B, asymmetric groups of 64, keys after rotation */
};

/** Everything that fixes a block's bytes. A value type; filled by qmk_layout_init. */
struct qmk_layout {
	enum qmk_format format;
	uint32_t layers;
	uint32_t content_dim; /**< d_c: multiple of 64 */
	uint32_t rope_dim;    /**< d_r: 32, 64 or 128 */
	uint32_t content_bits;
	uint32_t rope_bits;
	bool rope_rotated; /**< keys are stored after RoPE (paper-c4r4 only) */

	/* Bytes, derived. Plane offsets count from the start of a page. */
	uint32_t content_row_bytes;
	uint32_t rope_row_bytes;
	uint32_t rope_codes_offset;
	uint32_t content_scales_offset; /**< paper-c4r4: start of the records */
	uint32_t rope_scales_offset;    /**< paper-c4r4: unused, equal to page_bytes */
	uint32_t page_bytes;            /**< multiple of 128 */
	uint32_t header_bytes;          /**< multiple of 128 */
	uint64_t block_bytes;           /**< header_bytes + layers * page_bytes */

	/* paper-c4r4 only, else 0. */
	uint32_t content_groups; /**< content_dim / 64 */
	uint32_t rope_groups;    /**< 1, or 2 at rope_dim 128 */
	uint32_t record_bytes;   /**< of one token, multiple of 32: 32 at 512|64 */

	uint64_t fingerprint; /**< see qmk_layout_fingerprint */
};

/** What a sequence's cache takes, everything counted; filled by qmk_layout_account. */
struct qmk_account {
	uint64_t tokens;
	uint64_t blocks;       /**< full blocks of 64 tokens */
	uint64_t page_bytes;   /**< packed pages of the full blocks, all layers */
	uint64_t header_bytes; /**< block headers: keys, checksums, padding */
	uint64_t tail_bytes;   /**< room for one block of BF16 rows, all layers, held while the
				  sequence runs */
	uint64_t total_bytes;  /**< page_bytes + header_bytes + tail_bytes */
	uint64_t bf16_bytes; /**< the same tokens in BF16: 2 (d_c + d_r) bytes a token and layer */
	double token_layer_bytes; /**< total_bytes / (tokens * layers) */
	double compression;       /**< bf16_bytes / total_bytes */
};

/** Parses "c4r4", "c2r4" or "paper-c4r4". */
qmla_status_t qmk_format_parse(const char *text, enum qmk_format *format);
const char *qmk_format_name(enum qmk_format format); /**< static; "unknown" outside the enum */

/**
 * Fills @p layout. QMLA_ERR_INVALID_ARGUMENT for a geometry outside the limits
 * above. Any thread.
 */
qmla_status_t qmk_layout_init(enum qmk_format format, uint32_t layers, uint32_t content_dim,
			      uint32_t rope_dim, struct qmk_layout *layout);

/**
 * First 8 bytes (little-endian) of SHA-256 over the canonical text
 * "qmla-layout-v1:<format>:<layers>:<d_c>:<d_r>:<tokens>". Equal fingerprints
 * mean equal bytes.
 */
uint64_t qmk_layout_fingerprint(const struct qmk_layout *layout);

/**
 * Counts what @p tokens tokens of one sequence take: full blocks with their
 * headers, and the BF16 rows of the block that is not full, for which room for
 * 64 rows is held. Pure; any thread. Zero tokens give ratios of zero.
 */
void qmk_layout_account(const struct qmk_layout *layout, uint64_t tokens,
			struct qmk_account *account);

/** Byte offset of @p layer's page inside a block. */
static inline uint64_t qmk_layout_page_offset(const struct qmk_layout *layout, uint32_t layer)
{
	return layout->header_bytes + (uint64_t)layer * layout->page_bytes;
}

/** Position of 16-byte chunk @p chunk of token @p token in a row of @p chunks (a power of two or
 * not: see format.md). */
static inline uint32_t qmk_layout_chunk(uint32_t chunk, uint32_t token, uint32_t chunks)
{
	uint32_t reversed = (token & 1) << 2 | (token & 2) | (token & 4) >> 2;
	uint32_t low = chunks & (0u - chunks); /* largest power of two dividing chunks */

	return chunk ^ (reversed & (low - 1));
}

/** Bytes one token takes in one layer, without block header. */
static inline double qmk_layout_token_bytes(const struct qmk_layout *layout)
{
	return (double)layout->page_bytes / QMK_PAGE_TOKENS;
}

#endif /* QMK_LAYOUT_H */
