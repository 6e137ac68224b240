/* SPDX-License-Identifier: Apache-2.0 */
/** @file Stands in for CUDA's headers of fp16 and bfloat16: conversions by kernels/numeric.h. */
#ifndef TESTS_GPU_ON_CPU_CUDA_FP16_H
#define TESTS_GPU_ON_CPU_CUDA_FP16_H

#include "kernels/numeric.h"

struct __half {
	uint16_t bits;
};

struct __nv_bfloat16 {
	uint16_t bits;
};

struct __nv_bfloat162 {
	__nv_bfloat16 x, y;
};

static inline float __half2float(__half value)
{
	return qmk_fp16_to_float(value.bits);
}

static inline __half __float2half_rn(float value)
{
	return {qmk_float_to_fp16(value)};
}

static inline float __bfloat162float(__nv_bfloat16 value)
{
	return qmk_bf16_to_float(value.bits);
}

static inline __nv_bfloat16 __float2bfloat16_rn(float value)
{
	return {qmk_float_to_bf16(value)};
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
	return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif /* TESTS_GPU_ON_CPU_CUDA_FP16_H */
