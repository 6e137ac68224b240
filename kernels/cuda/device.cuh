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

/** Eight consecutive elements, @p index a multiple of 8. */
static __device__ __forceinline__ void qmk_load8(const void *data, uint64_t index, qmk_dtype dtype,
						 float *out)
{
	if (dtype == QMK_BF16) {
		const uint4 v = *(const uint4 *)((const __nv_bfloat16 *)data + index);
		const uint32_t word[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
		for (int i = 0; i < 4; i++) {
			out[2 * i] = __uint_as_float(word[i] << 16);
			out[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const float4 v = *(const float4 *)((const float *)data + index + 4 * i);

		out[4 * i] = v.x;
		out[4 * i + 1] = v.y;
		out[4 * i + 2] = v.z;
		out[4 * i + 3] = v.w;
	}
}

static __device__ __forceinline__ void qmk_store(void *data, uint64_t index, qmk_dtype dtype,
						 float value)
{
	if (dtype == QMK_BF16)
		((__nv_bfloat16 *)data)[index] = __float2bfloat16_rn(value);
	else
		((float *)data)[index] = value;
}

static __device__ __forceinline__ void qmk_store4(void *data, uint64_t index, qmk_dtype dtype,
						  float4 v)
{
	if (dtype == QMK_BF16) {
		__nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y),
					  __floats2bfloat162_rn(v.z, v.w)};

		*(uint2 *)((__nv_bfloat16 *)data + index) = *(uint2 *)pair;
	} else {
		*(float4 *)((float *)data + index) = v;
	}
}

/**
 * Lets the next kernel of the stream start its prologue (programmatic dependent launch),
 * and waits until the kernels before this one have ended and their writes are visible.
 * Both do nothing before sm_90.
 */
static __device__ __forceinline__ void grid_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void grid_wait()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/** Launches @p kernel; when @p overlap it may begin before its predecessor has ended (grid_wait).
 */
template <class Params>
static qmla_status_t qmk_launch(void (*kernel)(Params), dim3 grid, uint32_t threads, size_t shared,
				bool overlap, cudaStream_t stream, const Params &params)
{
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};

	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = overlap ? 1 : 0;
	return qmk_cuda_status(cudaLaunchKernelEx(&config, kernel, params));
}

/**
 * Asks for the Hopper kernel's division between shared memory and L1: a multiprocessor
 * changes it only when idle, so kernels that are to overlap must agree.
 */
static inline qmla_status_t qmk_share_like_hopper(const void *kernel)
{
	return qmk_cuda_status(cudaFuncSetAttribute(kernel,
						    cudaFuncAttributePreferredSharedMemoryCarveout,
						    cudaSharedmemCarveoutMaxShared));
}

/** Positions that a sequence attends: [begin, end), see key_end in kernels/ops.h. */
static __device__ __forceinline__ uint32_t qmk_key_begin(const qmk_sequence &s)
{
	return s.key_end ? s.key_begin : 0;
}

static __device__ __forceinline__ uint32_t qmk_key_end(const qmk_sequence &s)
{
	return s.key_end ? s.key_end : UINT32_MAX;
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
