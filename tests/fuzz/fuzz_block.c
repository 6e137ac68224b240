/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block from a stranger: the header check says what it is and nothing else, and
 * pages of any bytes unpack to something. Input: one byte that chooses the layout
 * and whether the header's checksum is put right (so that the fields behind it are
 * reached), then the block's bytes, repeated to its length.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/log.h"
#include "kernels/block.h"
#include "kernels/ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
	if (!condition)
		abort();
}

/* Over the length that the header claims, if that is possible at all. */
static void repair_checksum(uint8_t *block)
{
	uint32_t layers, bytes;
	uint64_t sum = 0;

	memcpy(&layers, block + 12, sizeof(layers));
	if (layers == 0 || layers > QMK_MAX_LAYERS)
		return;
	bytes = (96 + 8 * layers + 127) / 128 * 128;
	memcpy(block + 88, &sum, sizeof(sum));
	sum = XXH64(block, bytes, 0);
	memcpy(block + 88, &sum, sizeof(sum));
}

static void check_header(const struct qmk_layout *layout, uint8_t *block)
{
	struct qmk_block_info info = {.generation = 0};
	qmla_status_t status;

	memcpy(info.key, block + 16, sizeof(info.key));
	memcpy(info.identity, block + 32, sizeof(info.identity));
	status = qmk_block_check_header(layout, &info, block);
	check(status == QMLA_OK || status == QMLA_ERR_CORRUPT ||
	      status == QMLA_ERR_LAYOUT_MISMATCH);
	if (status != QMLA_OK)
		return;
	/* What passes can be sealed again to the same bytes but for the generation. */
	qmk_block_set_generation(layout, 12345, block);
	info.generation = 12345;
	check(qmk_block_check_header(layout, &info, block) == QMLA_OK);
	info.generation = 12346;
	check(qmk_block_check_header(layout, &info, block) == QMLA_ERR_STALE);
	info.identity[0] ^= 1;
	check(qmk_block_check_header(layout, &info, block) == QMLA_ERR_IDENTITY_MISMATCH);
}

static void unpack(const struct qmk_layout *layout, uint8_t *block)
{
	float content[QMK_PAGE_TOKENS * 64], rope[QMK_PAGE_TOKENS * 32];
	uint32_t slot = 0;
	struct qmk_unpack_args args = {
		.layout = layout,
		.pool = {block, layout->block_bytes},
		.layer = layout->layers - 1,
		.pages = 1,
		.slots = &slot,
		.content = content,
		.rope = rope,
		.content_stride = 64,
		.rope_stride = 32,
	};

	check(qmk_cpu_ops.unpack(&args) == QMLA_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct qmk_layout layout;
	uint8_t *block;

	if (size < 2)
		return 0;
	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	if (qmk_layout_init((enum qmk_format)(1 + data[0] % 3), 1 + data[0] / 3 % 4, 64, 32,
			    &layout) != QMLA_OK)
		abort();
	block = malloc(layout.block_bytes);
	if (!block)
		return 0;
	for (uint64_t i = 0; i < layout.block_bytes; i++)
		block[i] = data[1 + i % (size - 1)];
	if (data[0] & 0x80)
		repair_checksum(block);
	check_header(&layout, block);
	unpack(&layout, block);
	free(block);
	return 0;
}
