/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Stands in for CUDA's header of this name where kernels run on the CPU (cta.h): "device"
 * memory is host memory, streams are ignored, graphs are refused.
 */
#ifndef TESTS_GPU_ON_CPU_CUDA_RUNTIME_API_H
#define TESTS_GPU_ON_CPU_CUDA_RUNTIME_API_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef enum cudaError {
	cudaSuccess,
	cudaErrorInvalidValue,
	cudaErrorMemoryAllocation,
	cudaErrorInvalidConfiguration,
	cudaErrorNoDevice,
	cudaErrorInsufficientDriver,
	cudaErrorNoKernelImageForDevice,
	cudaErrorNotSupported
} cudaError_t;

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

typedef void *cudaStream_t;
typedef void *cudaGraph_t;
typedef void *cudaGraphExec_t;

static inline cudaError_t cudaMalloc(void **memory, size_t bytes)
{
	*memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
	return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

static inline cudaError_t cudaFree(void *memory)
{
	free(memory);
	return cudaSuccess;
}

static inline cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
	memset(memory, value, bytes);
	return cudaSuccess;
}

static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
				     enum cudaMemcpyKind kind)
{
	(void)kind;
	memcpy(to, from, bytes);
	return cudaSuccess;
}

static inline const char *cudaGetErrorString(cudaError_t error)
{
	return error == cudaSuccess ? "no error" : "not on the CPU";
}

static inline cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

static inline cudaError_t cudaDeviceSynchronize(void)
{
	return cudaSuccess;
}

enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };

static inline cudaError_t cudaGetDevice(int *device)
{
	*device = 0;
	return cudaSuccess;
}

/* The only attribute asked for: sm_90's 227 KiB. */
static inline cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute,
						 int device)
{
	(void)attribute;
	(void)device;
	*value = 227 * 1024;
	return cudaSuccess;
}

#define cudaStreamCaptureModeGlobal       0
#define cudaStreamCreate(stream)          (*(stream) = NULL, cudaErrorNotSupported)
#define cudaStreamDestroy(stream)         cudaErrorNotSupported
#define cudaStreamSynchronize(stream)     cudaErrorNotSupported
#define cudaStreamBeginCapture(stream, m) cudaErrorNotSupported
#define cudaStreamEndCapture(stream, g)   ((void)(stream), *(g) = NULL, cudaErrorNotSupported)
#define cudaGraphInstantiate(i, graph, f) (*(i) = NULL, cudaErrorNotSupported)
#define cudaGraphLaunch(instance, stream) cudaErrorNotSupported
#define cudaGraphExecDestroy(instance)    cudaErrorNotSupported
#define cudaGraphDestroy(graph)           cudaErrorNotSupported

#endif /* TESTS_GPU_ON_CPU_CUDA_RUNTIME_API_H */
