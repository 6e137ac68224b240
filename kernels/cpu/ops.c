/* SPDX-License-Identifier: Apache-2.0 */
/* The table that callers see: each entry goes on to the best variant's. */
#include "kernels/block.h"
#include "kernels/cpu/append.h"
#include "kernels/cpu/dispatch.h"

static size_t pack_workspace(const struct qmk_pack_args *args)
{
	return qmk_cpu_best()->ops.pack_workspace(args);
}

static qmla_status_t pack(const struct qmk_pack_args *args)
{
	return qmk_cpu_best()->ops.pack(args);
}

static qmla_status_t unpack(const struct qmk_unpack_args *args)
{
	return qmk_cpu_best()->ops.unpack(args);
}

static size_t attend_workspace(const struct qmk_attend_args *args)
{
	return qmk_cpu_best()->ops.attend_workspace(args);
}

/* A caller's thread walks its sequences by itself: there is nothing to spread. */
static qmla_status_t plan(const struct qmk_attend_args *args)
{
	(void)args;
	return QMLA_OK;
}

static qmla_status_t attend(const struct qmk_attend_args *args)
{
	return qmk_cpu_best()->ops.attend(args);
}

static qmla_status_t merge(const struct qmk_merge_args *args)
{
	return qmk_cpu_best()->ops.merge(args);
}

static qmla_status_t checksum(const struct qmk_checksum_args *args)
{
	return qmk_cpu_best()->ops.checksum(args);
}

static size_t append_workspace(const struct qmk_append_args *args)
{
	return qmk_cpu_append_workspace(args, qmk_cpu_best()->ops.pack_workspace);
}

static qmla_status_t append(const struct qmk_append_args *args)
{
	return qmk_cpu_append(args, qmk_cpu_best()->ops.pack);
}

uint64_t qmk_page_checksum(const void *page, size_t bytes)
{
	return qmk_cpu_best()->page_checksum(page, bytes);
}

const struct qmk_ops qmk_cpu_ops = {
	.name = "cpu",
	.pack_workspace = pack_workspace,
	.pack = pack,
	.unpack = unpack,
	.attend_workspace = attend_workspace,
	.plan = plan,
	.attend = attend,
	.merge = merge,
	.checksum = checksum,
	.append_workspace = append_workspace,
	.append = append,
};
