/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/layout.h"

_Static_assert((int)QMLA_FORMAT_C4R4 == (int)QMK_FORMAT_C4R4, "public and inner formats agree");
_Static_assert((int)QMLA_FORMAT_C2R4 == (int)QMK_FORMAT_C2R4, "public and inner formats agree");
_Static_assert((int)QMLA_FORMAT_PAPER_C4R4 == (int)QMK_FORMAT_PAPER_C4R4,
	       "public and inner formats agree");

qmla_status_t qml_layout_init(const qmla_layout_t *layout, struct qmk_layout *bytes)
{
	if (!layout || layout->format < QMLA_FORMAT_C4R4 || layout->format > QMLA_FORMAT_PAPER_C4R4)
		return QMLA_ERR_INVALID_ARGUMENT;
	return qmk_layout_init((enum qmk_format)layout->format, layout->layers, layout->content_dim,
			       layout->rope_dim, bytes);
}

uint64_t qmla_layout_block_bytes(const qmla_layout_t *layout)
{
	struct qmk_layout bytes;

	return qml_layout_init(layout, &bytes) == QMLA_OK ? bytes.block_bytes : 0;
}
