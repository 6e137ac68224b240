/* SPDX-License-Identifier: Apache-2.0 */
/** @file What a block must be before the node shows it: the store's layout against the page
 * format's. */
#ifndef QMS_VERIFY_H
#define QMS_VERIFY_H

#include "kernels/layout.h"
#include "server/store/store.h"

/**
 * Fills the format's layout from a client's description and checks all of it.
 * QMLA_ERR_LAYOUT_MISMATCH (version, tokens a page or fingerprint) or
 * QMLA_ERR_INVALID_ARGUMENT (geometry); @p why names the field.
 */
qmla_status_t qms_verify_layout(const struct qms_layout *described, struct qmk_layout *layout,
				const char **why);

/**
 * Store callback: header (magic, layout, identity, key, generation, its own
 * checksum) and the digest of the page checksums. The pages themselves are
 * checked by whoever reads them.
 */
qmla_status_t qms_verify_block(void *user, const struct qms_block_view *block);

#endif /* QMS_VERIFY_H */
