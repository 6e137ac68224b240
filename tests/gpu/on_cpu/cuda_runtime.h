/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Stands in for CUDA's header of this name, so that kernels without tensor cores or
 * architecture-specific instructions compile as C++ and run on the CPU (cta.h).
 */
#ifndef TESTS_GPU_ON_CPU_CUDA_RUNTIME_H
#define TESTS_GPU_ON_CPU_CUDA_RUNTIME_H

#include <algorithm>
#include <math.h>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* Static arrays are marked `static __shared__`; the dynamic one is a global of cta.cpp. */
#define __shared__

struct alignas(8) uint2 {
	unsigned x, y;
};

struct uint3 {
	unsigned x, y, z;
};

struct alignas(16) uint4 {
	unsigned x, y, z, w;
};

struct alignas(16) ulonglong2 {
	unsigned long long x, y;
};

struct alignas(8) float2 {
	float x, y;
};

struct alignas(16) float4 {
	float x, y, z, w;
};

struct dim3 {
	unsigned x, y, z;

	dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
	{
	}
};

static inline float2 make_float2(float x, float y)
{
	return {x, y};
}

static inline float4 make_float4(float x, float y, float z, float w)
{
	return {x, y, z, w};
}

static inline float __uint_as_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

using std::max;
using std::min;

#include "tests/gpu/on_cpu/cta.h"

struct cudaLaunchAttribute {
	int id;
	struct {
		int programmaticStreamSerializationAllowed;
	} val;
};

struct cudaLaunchConfig_t {
	dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	cudaStream_t stream;
	cudaLaunchAttribute *attrs;
	unsigned numAttrs;
};

enum { cudaLaunchAttributeProgrammaticStreamSerialization };
enum {
	cudaFuncAttributeMaxDynamicSharedMemorySize,
	cudaFuncAttributePreferredSharedMemoryCarveout,
	cudaSharedmemCarveoutMaxShared
};

template <class Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel, int attribute, int value)
{
	if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > ON_CPU_SHARED)
		return cudaErrorInvalidValue;
	return cudaSuccess;
}

template <class Params>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
					     void (*kernel)(Params), const Params &params)
{
	on_cpu_run(config->gridDim, config->blockDim.x, config->dynamicSmemBytes,
		   [&] { kernel(params); });
	return cudaSuccess;
}

#endif /* TESTS_GPU_ON_CPU_CUDA_RUNTIME_H */
