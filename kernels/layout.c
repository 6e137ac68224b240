/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/digest.h"
#include "common/log.h"
#include "kernels/block.h"

static const struct {
	enum qmk_format format;
	const char *name;
	uint32_t content_bits;
} qmk_formats[] = {
	{QMK_FORMAT_C4R4, "c4r4", 4},
	{QMK_FORMAT_C2R4, "c2r4", 2},
	{QMK_FORMAT_PAPER_C4R4, "paper-c4r4", 4},
};

#define QMK_FORMATS     (sizeof(qmk_formats) / sizeof(qmk_formats[0]))
#define QMK_ROPE_BITS   4u
#define QMK_RECORD_UNIT 32u

static uint32_t round_up(uint32_t value, uint32_t unit)
{
	return (value + unit - 1) / unit * unit;
}

qmla_status_t qmk_format_parse(const char *text, enum qmk_format *format)
{
	for (size_t i = 0; text && i < QMK_FORMATS; i++) {
		if (strcmp(text, qmk_formats[i].name) == 0) {
			*format = qmk_formats[i].format;
			return QMLA_OK;
		}
	}
	qmc_error("kernels", "unknown page format \"%s\": use c4r4, c2r4 or paper-c4r4",
		  text ? text : "");
	return QMLA_ERR_INVALID_ARGUMENT;
}

const char *qmk_format_name(enum qmk_format format)
{
	for (size_t i = 0; i < QMK_FORMATS; i++)
		if (qmk_formats[i].format == format)
			return qmk_formats[i].name;
	return "unknown";
}

static uint32_t format_content_bits(enum qmk_format format)
{
	for (size_t i = 0; i < QMK_FORMATS; i++)
		if (qmk_formats[i].format == format)
			return qmk_formats[i].content_bits;
	return 0;
}

static qmla_status_t check_geometry(enum qmk_format format, uint32_t layers, uint32_t content_dim,
				    uint32_t rope_dim)
{
	if (format_content_bits(format) == 0) {
		qmc_error("kernels",
			  "page format %d does not exist: use 1 (c4r4), 2 (c2r4) or 3 "
			  "(paper-c4r4)",
			  (int)format);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (layers == 0 || layers > QMK_MAX_LAYERS) {
		qmc_error("kernels", "%" PRIu32 " layers in a block: 1 to %u are possible", layers,
			  QMK_MAX_LAYERS);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (content_dim == 0 || content_dim > QMK_MAX_CONTENT_DIM || content_dim % 64 != 0) {
		qmc_error("kernels",
			  "content dimension %" PRIu32 ": a multiple of 64 up to %u is "
			  "needed",
			  content_dim, QMK_MAX_CONTENT_DIM);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (rope_dim != 32 && rope_dim != 64 && rope_dim != QMK_MAX_ROPE_DIM) {
		qmc_error("kernels", "RoPE dimension %" PRIu32 ": 32, 64 or 128 is needed",
			  rope_dim);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

/* Planes in their order; see the table at the head of layout.h. */
static void place_planes(struct qmk_layout *self)
{
	self->content_row_bytes = self->content_dim * self->content_bits / 8;
	self->rope_row_bytes = self->rope_dim * self->rope_bits / 8;
	self->rope_codes_offset = QMK_PAGE_TOKENS * self->content_row_bytes;
	self->content_scales_offset =
		self->rope_codes_offset + QMK_PAGE_TOKENS * self->rope_row_bytes;
	if (self->format == QMK_FORMAT_PAPER_C4R4) {
		self->content_groups = self->content_dim / QMK_PAPER_GROUP;
		self->rope_groups = (self->rope_dim + QMK_PAPER_GROUP - 1) / QMK_PAPER_GROUP;
		/* BF16 and FP32 scales, then one byte a zero point. */
		self->record_bytes =
			round_up(3 * self->content_groups + 5 * self->rope_groups, QMK_RECORD_UNIT);
		self->page_bytes =
			self->content_scales_offset + QMK_PAGE_TOKENS * self->record_bytes;
		self->rope_scales_offset = self->page_bytes;
	} else {
		self->rope_scales_offset =
			self->content_scales_offset + QMK_PAGE_TOKENS * (uint32_t)sizeof(uint16_t);
		self->page_bytes =
			self->rope_scales_offset + QMK_PAGE_TOKENS * (uint32_t)sizeof(uint16_t);
	}
}

static qmla_status_t compute_fingerprint(struct qmk_layout *self)
{
	char text[96];
	uint8_t digest[QMC_SHA256_BYTES];
	int length = snprintf(text, sizeof(text),
			      "qmla-layout-v1:%s:%" PRIu32 ":%" PRIu32 ":%" PRIu32 ":%u",
			      qmk_format_name(self->format), self->layers, self->content_dim,
			      self->rope_dim, QMK_PAGE_TOKENS);
	qmla_status_t status = qmc_sha256(text, (size_t)length, digest);

	if (status != QMLA_OK)
		return status;
	self->fingerprint = 0;
	for (unsigned i = 0; i < 8; i++)
		self->fingerprint |= (uint64_t)digest[i] << (8 * i);
	return QMLA_OK;
}

qmla_status_t qmk_layout_init(enum qmk_format format, uint32_t layers, uint32_t content_dim,
			      uint32_t rope_dim, struct qmk_layout *layout)
{
	struct qmk_layout self = {0};
	qmla_status_t status = check_geometry(format, layers, content_dim, rope_dim);

	if (status != QMLA_OK)
		return status;
	self.format = format;
	self.layers = layers;
	self.content_dim = content_dim;
	self.rope_dim = rope_dim;
	self.content_bits = format_content_bits(format);
	self.rope_bits = QMK_ROPE_BITS;
	self.rope_rotated = format == QMK_FORMAT_PAPER_C4R4;
	place_planes(&self);
	self.header_bytes =
		round_up(QMK_BLOCK_FIXED_BYTES + layers * (uint32_t)sizeof(uint64_t), QMK_ALIGN);
	self.block_bytes = self.header_bytes + (uint64_t)layers * self.page_bytes;
	status = compute_fingerprint(&self);
	if (status != QMLA_OK)
		return status;
	*layout = self;
	return QMLA_OK;
}

uint64_t qmk_layout_fingerprint(const struct qmk_layout *layout)
{
	return layout->fingerprint;
}

void qmk_layout_account(const struct qmk_layout *layout, uint64_t tokens,
			struct qmk_account *account)
{
	uint64_t row = 2 * ((uint64_t)layout->content_dim + layout->rope_dim) * layout->layers;
	struct qmk_account self = {.tokens = tokens, .blocks = tokens / QMK_PAGE_TOKENS};

	self.page_bytes = self.blocks * layout->layers * layout->page_bytes;
	self.header_bytes = self.blocks * layout->header_bytes;
	self.tail_bytes = QMK_PAGE_TOKENS * row;
	self.total_bytes = self.page_bytes + self.header_bytes + self.tail_bytes;
	self.bf16_bytes = tokens * row;
	if (tokens > 0) {
		self.token_layer_bytes =
			(double)self.total_bytes / ((double)tokens * layout->layers);
		self.compression = (double)self.bf16_bytes / (double)self.total_bytes;
	}
	*account = self;
}
