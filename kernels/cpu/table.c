/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/variant.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"

#define TEXT_(variant) "cpu-" #variant
#define TEXT(variant)  TEXT_(variant)

extern const struct qmk_cpu_table qmk_cpu_table;

const struct qmk_cpu_table qmk_cpu_table = {
	.ops =
		{
			.name = TEXT(QMK_VARIANT),
			.pack_workspace = qmk_cpu_pack_workspace,
			.pack = qmk_cpu_pack,
			.unpack = qmk_cpu_unpack,
			.attend_workspace = qmk_cpu_attend_workspace,
			.attend = qmk_cpu_attend,
			.merge = qmk_cpu_merge,
			.checksum = qmk_cpu_checksum,
		},
	.page_checksum = qmk_cpu_page_checksum,
};
