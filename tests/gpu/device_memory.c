/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/device_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#define ALLOCATIONS_MAX 256

static void *allocations[ALLOCATIONS_MAX];
static size_t allocation_count;

static void check(cudaError_t error)
{
	if (error != cudaSuccess)
		fail_msg("CUDA: %s", cudaGetErrorString(error));
}

void *device_alloc(size_t bytes)
{
	void *memory = NULL;

	assert_true(allocation_count < ALLOCATIONS_MAX);
	check(cudaMalloc(&memory, bytes ? bytes : 1));
	check(cudaMemset(memory, 0xa5, bytes));
	allocations[allocation_count++] = memory;
	return memory;
}

void *device_copy(const void *host, size_t bytes)
{
	void *memory;

	if (!host)
		return NULL;
	memory = device_alloc(bytes);
	device_write(memory, host, bytes);
	return memory;
}

void device_read(void *host, const void *device, size_t bytes)
{
	check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

void device_write(void *device, const void *host, size_t bytes)
{
	check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void device_finish(void)
{
	check(cudaGetLastError());
	check(cudaDeviceSynchronize());
}

void device_release_all(void)
{
	while (allocation_count > 0)
		(void)cudaFree(allocations[--allocation_count]);
}

void *device_graph_begin(void)
{
	cudaStream_t stream;

	check(cudaStreamCreate(&stream));
	check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	return stream;
}

void device_graph_replay(void *stream, int times)
{
	cudaGraph_t graph;
	cudaGraphExec_t instance;

	check(cudaStreamEndCapture(stream, &graph));
	check(cudaGraphInstantiate(&instance, graph, 0));
	for (int i = 0; i < times; i++)
		check(cudaGraphLaunch(instance, stream));
	check(cudaStreamSynchronize(stream));
	check(cudaGraphExecDestroy(instance));
	check(cudaGraphDestroy(graph));
	check(cudaStreamDestroy(stream));
}
