/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/block.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "common/log.h"
#include "kernels/numeric.h"

/* Byte map of the fixed part; docs/format.md, "Block header". */
enum {
	AT_MAGIC = 0,
	AT_VERSION = 8,
	AT_FORMAT = 10,
	AT_LAYERS = 12,
	AT_KEY = 16,
	AT_IDENTITY = 32,
	AT_GENERATION = 64,
	AT_TOKENS = 72,
	AT_FLAGS = 76,
	AT_FINGERPRINT = 80,
	AT_CHECKSUM = 88,
	AT_PAGES = QMK_BLOCK_FIXED_BYTES,
};

#define HEADER_MAX_BYTES (QMK_BLOCK_FIXED_BYTES + QMK_MAX_LAYERS * 8 + QMK_ALIGN)

static const char qmk_magic[8] = {'Q', 'M', 'L', 'A', 'B', 'L', 'K', '\n'};

static uint32_t header_bytes(uint32_t layers)
{
	uint32_t bytes = QMK_BLOCK_FIXED_BYTES + layers * (uint32_t)sizeof(uint64_t);

	return (bytes + QMK_ALIGN - 1) / QMK_ALIGN * QMK_ALIGN;
}

/* XXH64 of the whole header with the checksum's own eight bytes taken as zero. */
static uint64_t header_checksum(const uint8_t *header, uint32_t bytes)
{
	uint8_t copy[HEADER_MAX_BYTES];

	memcpy(copy, header, bytes);
	qmk_store64(copy + AT_CHECKSUM, 0);
	return XXH64(copy, bytes, 0);
}

void qmk_block_seal_with(const struct qmk_layout *layout, const struct qmk_block_info *info,
			 const uint64_t *page_checksums, void *block)
{
	uint8_t *header = block;

	memset(header, 0, layout->header_bytes);
	memcpy(header + AT_MAGIC, qmk_magic, sizeof(qmk_magic));
	qmk_store16(header + AT_VERSION, QMK_FORMAT_VERSION);
	qmk_store16(header + AT_FORMAT, (uint16_t)layout->format);
	qmk_store32(header + AT_LAYERS, layout->layers);
	memcpy(header + AT_KEY, info->key, QMK_KEY_BYTES);
	memcpy(header + AT_IDENTITY, info->identity, QMK_IDENTITY_BYTES);
	qmk_store64(header + AT_GENERATION, info->generation);
	qmk_store32(header + AT_TOKENS, QMK_PAGE_TOKENS);
	qmk_store64(header + AT_FINGERPRINT, layout->fingerprint);
	for (uint32_t i = 0; i < layout->layers; i++)
		qmk_store64(header + AT_PAGES + 8 * i, page_checksums[i]);
	qmk_store64(header + AT_CHECKSUM, header_checksum(header, layout->header_bytes));
}

void qmk_block_seal(const struct qmk_layout *layout, const struct qmk_block_info *info, void *block)
{
	uint64_t checksums[QMK_MAX_LAYERS];
	const uint8_t *bytes = block;

	for (uint32_t i = 0; i < layout->layers; i++)
		checksums[i] = qmk_page_checksum(bytes + qmk_layout_page_offset(layout, i),
						 layout->page_bytes);
	qmk_block_seal_with(layout, info, checksums, block);
}

void qmk_block_set_generation(const struct qmk_layout *layout, uint64_t generation, void *block)
{
	uint8_t *header = block;

	qmk_store64(header + AT_GENERATION, generation);
	qmk_store64(header + AT_CHECKSUM, header_checksum(header, layout->header_bytes));
}

static qmla_status_t corrupt(const char *what)
{
	qmc_warn_limited("kernels",
			 "block header: %s: the block is corrupt or was never written; "
			 "it is a miss",
			 what);
	return QMLA_ERR_CORRUPT;
}

/*
 * That these are a header's own bytes as they were written, whatever layout they
 * are of. The smallest block is longer than the largest header, so a header of
 * any layout can be read from a block of any.
 */
static qmla_status_t check_integrity(const uint8_t *header)
{
	uint32_t layers = qmk_load32(header + AT_LAYERS);
	uint16_t format = qmk_load16(header + AT_FORMAT);

	if (memcmp(header + AT_MAGIC, qmk_magic, sizeof(qmk_magic)) != 0)
		return corrupt("no magic number");
	if (qmk_load16(header + AT_VERSION) != QMK_FORMAT_VERSION)
		return corrupt("unknown version");
	if (format < QMK_FORMAT_C4R4 || format > QMK_FORMAT_PAPER_C4R4)
		return corrupt("unknown page format");
	if (layers == 0 || layers > QMK_MAX_LAYERS)
		return corrupt("impossible number of layers");
	if (qmk_load32(header + AT_TOKENS) != QMK_PAGE_TOKENS)
		return corrupt("impossible number of tokens");
	if (qmk_load32(header + AT_FLAGS) != 0)
		return corrupt("unknown flags");
	if (qmk_load64(header + AT_CHECKSUM) != header_checksum(header, header_bytes(layers)))
		return corrupt("wrong checksum");
	return QMLA_OK;
}

static qmla_status_t check_layout(const struct qmk_layout *layout, const uint8_t *header)
{
	if (qmk_load64(header + AT_FINGERPRINT) == layout->fingerprint &&
	    qmk_load32(header + AT_LAYERS) == layout->layers &&
	    qmk_load16(header + AT_FORMAT) == (uint16_t)layout->format)
		return QMLA_OK;
	qmc_warn_limited("kernels",
			 "block is %s with %" PRIu32 " layers, layout %016" PRIx64
			 "; %s with %" PRIu32 " layers, layout %016" PRIx64 " was expected",
			 qmk_format_name((enum qmk_format)qmk_load16(header + AT_FORMAT)),
			 qmk_load32(header + AT_LAYERS), qmk_load64(header + AT_FINGERPRINT),
			 qmk_format_name(layout->format), layout->layers, layout->fingerprint);
	return QMLA_ERR_LAYOUT_MISMATCH;
}

qmla_status_t qmk_block_check_header(const struct qmk_layout *layout,
				     const struct qmk_block_info *info, const void *block)
{
	const uint8_t *header = block;
	qmla_status_t status = check_integrity(header);

	if (status == QMLA_OK)
		status = check_layout(layout, header);
	if (status != QMLA_OK)
		return status;
	if (memcmp(header + AT_IDENTITY, info->identity, QMK_IDENTITY_BYTES) != 0) {
		qmc_warn_limited("kernels", "block belongs to another model identity");
		return QMLA_ERR_IDENTITY_MISMATCH;
	}
	/* Ordinary races with a slot's reuse: not worth a line. */
	if (memcmp(header + AT_KEY, info->key, QMK_KEY_BYTES) != 0)
		return QMLA_ERR_STALE;
	if (info->generation != 0 && qmk_load64(header + AT_GENERATION) != info->generation)
		return QMLA_ERR_STALE;
	return QMLA_OK;
}

qmla_status_t qmk_block_read_info(const void *block, size_t bytes, struct qmk_block_info *info)
{
	const uint8_t *header = block;
	qmla_status_t status;
	uint32_t layers;

	if (bytes < QMK_BLOCK_FIXED_BYTES)
		return corrupt("cut short");
	layers = qmk_load32(header + AT_LAYERS);
	if (layers <= QMK_MAX_LAYERS && bytes < header_bytes(layers))
		return corrupt("cut short");
	status = check_integrity(header);
	if (status != QMLA_OK)
		return status;
	memcpy(info->key, header + AT_KEY, QMK_KEY_BYTES);
	memcpy(info->identity, header + AT_IDENTITY, QMK_IDENTITY_BYTES);
	info->generation = qmk_load64(header + AT_GENERATION);
	return QMLA_OK;
}

qmla_status_t qmk_block_check(const struct qmk_layout *layout, const struct qmk_block_info *info,
			      const void *block)
{
	const uint8_t *bytes = block;
	qmla_status_t status = qmk_block_check_header(layout, info, block);

	for (uint32_t i = 0; status == QMLA_OK && i < layout->layers; i++) {
		uint64_t found = qmk_page_checksum(bytes + qmk_layout_page_offset(layout, i),
						   layout->page_bytes);

		if (found != qmk_load64(bytes + AT_PAGES + 8 * i)) {
			qmc_warn_limited("kernels",
					 "page of layer %" PRIu32 " does not match its checksum: "
					 "the block is a miss",
					 i);
			status = QMLA_ERR_CORRUPT;
		}
	}
	return status;
}

uint64_t qmk_block_digest(const struct qmk_layout *layout, const void *block)
{
	const uint8_t *header = block;

	return XXH64(header + AT_PAGES, layout->layers * sizeof(uint64_t), 0);
}
