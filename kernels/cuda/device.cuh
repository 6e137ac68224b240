/* SPDX-License-Identifier: Apache-2.0 */
/** @file What every CUDA kernel here shares: error mapping and small device functions. */
#ifndef QMK_CUDA_DEVICE_CUH
#define QMK_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "kernels/ops.h"
}

/** Status of a CUDA call or, with cudaGetLastError(), of a launch. */
static inline qmla_status_t qmk_cuda_status(cudaError_t error)
{
	switch (error) {
	case cudaSuccess:
		return QMLA_OK;
	case cudaErrorMemoryAllocation:
		return QMLA_ERR_NO_MEMORY;
	case cudaErrorInvalidValue:
	case cudaErrorInvalidConfiguration:
		return QMLA_ERR_INVALID_ARGUMENT;
	case cudaErrorNoDevice:
	case cudaErrorInsufficientDriver:
	case cudaErrorNoKernelImageForDevice:
		return QMLA_ERR_UNSUPPORTED;
	default:
		return QMLA_ERR_INTERNAL;
	}
}

/** One element of an array whose type is known at run time. */
static __device__ __forceinline__ float qmk_load(const void *data, uint64_t index, qmk_dtype dtype)
{
	if (dtype == QMK_BF16)
		return __bfloat162float(((const __nv_bfloat16 *)data)[index]);
	return ((const float *)data)[index];
}

static __device__ __forceinline__ void qmk_store(void *data, uint64_t index, qmk_dtype dtype,
						 float value)
{
	if (dtype == QMK_BF16)
		((__nv_bfloat16 *)data)[index] = __float2bfloat16_rn(value);
	else
		((float *)data)[index] = value;
}

/** The page of @p layer in block @p slot. */
static __device__ __forceinline__ uint8_t *qmk_page(const qmk_pool &pool, const qmk_layout &layout,
						    uint32_t slot, uint32_t layer)
{
	return (uint8_t *)pool.base + (uint64_t)slot * pool.stride + layout.header_bytes +
	       (uint64_t)layer * layout.page_bytes;
}

/** qmk_layout_chunk on the device. */
static __device__ __forceinline__ uint32_t qmk_chunk(uint32_t chunk, uint32_t token,
						     uint32_t chunks)
{
	uint32_t reversed = (token & 1) << 2 | (token & 2) | (token & 4) >> 2;

	return chunk ^ (reversed & ((chunks & (0u - chunks)) - 1));
}

#endif /* QMK_CUDA_DEVICE_CUH */
