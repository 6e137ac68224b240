/* SPDX-License-Identifier: Apache-2.0 */
#include "server/verify.h"

#include <string.h>

#include "common/log.h"
#include "kernels/block.h"

qmla_status_t qms_verify_layout(const struct qms_layout *described, struct qmk_layout *layout,
				const char **why)
{
	struct qmk_layout made;

	if (described->version != QMK_FORMAT_VERSION) {
		*why = "version";
		return QMLA_ERR_LAYOUT_MISMATCH;
	}
	if (described->page_tokens != QMK_PAGE_TOKENS) {
		*why = "page_tokens";
		return QMLA_ERR_LAYOUT_MISMATCH;
	}
	if (qmk_layout_init((enum qmk_format)described->format, described->layers,
			    described->content_dim, described->rope_dim, &made) != QMLA_OK) {
		*why = "format, layers, content_dim or rope_dim";
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (qmk_layout_fingerprint(&made) != described->fingerprint) {
		*why = "fingerprint";
		return QMLA_ERR_LAYOUT_MISMATCH;
	}
	*layout = made;
	return QMLA_OK;
}

qmla_status_t qms_verify_block(void *user, const struct qms_block_view *block)
{
	struct qmk_block_info info = {.generation = block->generation};
	struct qmk_layout layout;
	const char *why;
	qmla_status_t status;

	(void)user;
	status = qms_verify_layout(&block->layout, &layout, &why);
	if (status != QMLA_OK)
		return QMLA_ERR_INTERNAL; /* it was checked when the identity was opened */
	memcpy(info.key, block->key.bytes, sizeof(info.key));
	memcpy(info.identity, block->identity.bytes, sizeof(info.identity));
	status = qmk_block_check_header(&layout, &info, block->data);
	if (status == QMLA_OK && qmk_block_digest(&layout, block->data) != block->digest)
		status = QMLA_ERR_CORRUPT;
	if (status != QMLA_OK)
		qmc_warn_limited("node", "a written block was refused at commit: %s",
				 qmla_status_text(status));
	return status;
}
