/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"
#include "kernels/block.h"
#include "kernels/cpu/cpu.h"

const struct qmk_ops qmk_cpu_ops = {
	.name = "cpu",
	.pack_workspace = qmk_cpu_pack_workspace,
	.pack = qmk_cpu_pack,
	.unpack = qmk_cpu_unpack,
	.attend_workspace = qmk_cpu_attend_workspace,
	.plan = qmk_cpu_plan,
	.attend = qmk_cpu_attend,
	.merge = qmk_cpu_merge,
	.checksum = qmk_cpu_checksum,
};

/* One core walks a sequence by itself: there is nothing to spread. */
qmla_status_t qmk_cpu_plan(const struct qmk_attend_args *args)
{
	(void)args;
	return QMLA_OK;
}

qmla_status_t qmk_cpu_reject(const char *call, const char *what)
{
	qmc_error("kernels", "%s: %s", call, what);
	return QMLA_ERR_INVALID_ARGUMENT;
}

bool qmk_cpu_pool_valid(const char *call, const struct qmk_layout *layout,
			const struct qmk_pool *pool)
{
	if (!pool->base) {
		(void)qmk_cpu_reject(call, "the pool has no memory");
		return false;
	}
	if (pool->stride < layout->block_bytes || pool->stride % QMK_ALIGN != 0) {
		(void)qmk_cpu_reject(call, "the pool's stride is smaller than a block or no "
					   "multiple of 128");
		return false;
	}
	return true;
}

const struct qmk_constants *qmk_cpu_constants(const struct qmk_layout *layout,
					      const struct qmk_constants *constants)
{
	static const struct qmk_constants none;

	return constants && layout->format != QMK_FORMAT_PAPER_C4R4 ? constants : &none;
}

qmla_status_t qmk_cpu_checksum(const struct qmk_checksum_args *args)
{
	const struct qmk_layout *layout = args ? args->layout : NULL;

	if (!layout || (args->blocks > 0 && (!args->slots || !args->checksums)))
		return qmk_cpu_reject("checksum", "an argument is missing");
	if (args->blocks == 0)
		return QMLA_OK;
	if (!qmk_cpu_pool_valid("checksum", layout, &args->pool))
		return QMLA_ERR_INVALID_ARGUMENT;
	for (uint32_t b = 0; b < args->blocks; b++)
		for (uint32_t layer = 0; layer < layout->layers; layer++)
			args->checksums[(size_t)b * layout->layers + layer] = qmk_page_checksum(
				qmk_cpu_page(layout, &args->pool, args->slots[b], layer),
				layout->page_bytes);
	return QMLA_OK;
}
