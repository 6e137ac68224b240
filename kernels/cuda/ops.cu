/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA table, handed out only where a usable device is present. */
#include "kernels/cuda/append.cuh"
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/checksum.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/merge.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/unpack.cuh"

static const struct qmk_ops cuda_ops = {
	/* .name = */ "cuda",
	/* .pack_workspace = */ qmk_cuda_pack_workspace,
	/* .pack = */ qmk_cuda_pack,
	/* .unpack = */ qmk_cuda_unpack,
	/* .attend_workspace = */ qmk_cuda_attend_workspace,
	/* .plan = */ qmk_cuda_plan,
	/* .attend = */ qmk_cuda_attend,
	/* .merge = */ qmk_cuda_merge,
	/* .checksum = */ qmk_cuda_checksum,
	/* .append_workspace = */ qmk_cuda_append_workspace,
	/* .append = */ qmk_cuda_append,
};

extern "C" const struct qmk_ops *qmk_cuda_ops(void)
{
	int devices = 0;
	int device;
	int major;

	if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
		(void)cudaGetLastError(); /* not ours to leave behind */
		return NULL;
	}
	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) !=
		    cudaSuccess)
		return NULL;
	return major >= 8 ? &cuda_ops : NULL;
}
