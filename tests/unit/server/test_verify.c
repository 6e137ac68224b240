/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_first.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/block.h"
#include "server/verify.h"

static struct qms_layout described(const struct qmk_layout *layout)
{
	return (struct qms_layout){layout->format,
				   layout->layers,
				   layout->content_dim,
				   layout->rope_dim,
				   QMK_PAGE_TOKENS,
				   QMK_FORMAT_VERSION,
				   qmk_layout_fingerprint(layout),
				   layout->block_bytes};
}

static void every_format_is_accepted_as_described(void **state)
{
	(void)state;
	for (int format = QMK_FORMAT_C4R4; format <= QMK_FORMAT_PAPER_C4R4; format++) {
		struct qmk_layout layout, made;
		struct qms_layout text;
		const char *why = "";

		assert_int_equal(qmk_layout_init((enum qmk_format)format, 3, 512, 64, &layout),
				 QMLA_OK);
		text = described(&layout);
		assert_int_equal(qms_verify_layout(&text, &made, &why), QMLA_OK);
		assert_int_equal(made.block_bytes, layout.block_bytes);
	}
}

static void wrong_descriptions_are_refused_by_name(void **state)
{
	struct qmk_layout layout, made;
	struct qms_layout text;
	const char *why = "";

	(void)state;
	assert_int_equal(qmk_layout_init(QMK_FORMAT_C2R4, 3, 512, 64, &layout), QMLA_OK);
#define REFUSED(field, value, status, word)                                                        \
	do {                                                                                       \
		text = described(&layout);                                                         \
		text.field = value;                                                                \
		assert_int_equal(qms_verify_layout(&text, &made, &why), status);                   \
		assert_non_null(strstr(why, word));                                                \
	} while (0)
	REFUSED(version, 0, QMLA_ERR_LAYOUT_MISMATCH, "version");
	REFUSED(page_tokens, 63, QMLA_ERR_LAYOUT_MISMATCH, "page_tokens");
	REFUSED(fingerprint, 1, QMLA_ERR_LAYOUT_MISMATCH, "fingerprint");
	REFUSED(layers, 4, QMLA_ERR_LAYOUT_MISMATCH, "fingerprint");
	REFUSED(layers, 0, QMLA_ERR_INVALID_ARGUMENT, "layers");
	REFUSED(layers, UINT32_MAX, QMLA_ERR_INVALID_ARGUMENT, "layers");
	REFUSED(content_dim, 0, QMLA_ERR_INVALID_ARGUMENT, "content_dim");
	REFUSED(rope_dim, 7, QMLA_ERR_INVALID_ARGUMENT, "rope_dim");
	REFUSED(format, 0, QMLA_ERR_INVALID_ARGUMENT, "format");
	REFUSED(format, 99, QMLA_ERR_INVALID_ARGUMENT, "format");
#undef REFUSED
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_format_is_accepted_as_described),
		cmocka_unit_test(wrong_descriptions_are_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
