/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/check.h"

#include "common/log.h"

qmla_status_t qmk_check_reject(const char *call, const char *what)
{
	qmc_error("kernels", "%s: %s", call, what);
	return QMLA_ERR_INVALID_ARGUMENT;
}

bool qmk_check_pool(const char *call, const struct qmk_layout *layout, const struct qmk_pool *pool)
{
	const char *fault = NULL;

	if (!pool->base)
		fault = "the pool has no memory";
	else if (pool->stride < layout->block_bytes || pool->stride % QMK_ALIGN != 0)
		fault = "the pool's stride is smaller than a block or no multiple of 128";
	if (fault)
		(void)qmk_check_reject(call, fault);
	return !fault;
}

const struct qmk_constants *qmk_check_constants(const struct qmk_layout *layout,
						const struct qmk_constants *constants)
{
	static const struct qmk_constants none;

	return constants && layout->format != QMK_FORMAT_PAPER_C4R4 ? constants : &none;
}
