/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of the CUDA table that can run here. */
#include "kernels/cuda/append.cuh"
#include "kernels/cuda/checksum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/unpack.cuh"

extern "C" const struct qmk_ops *qmk_cuda_ops(void)
{
	static struct qmk_ops table;

	table.name = "cuda on the CPU";
	table.pack_workspace = qmk_cuda_pack_workspace;
	table.pack = qmk_cuda_pack;
	table.unpack = qmk_cuda_unpack;
	table.checksum = qmk_cuda_checksum;
	table.append_workspace = qmk_cuda_append_workspace;
	table.append = qmk_cuda_append;
	return &table;
}
