/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/bench.h"

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#define SAMPLES 30

void qmk_gpu_must(int error, const char *what)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "GPU benchmark: %s: %s\n", what, cudaGetErrorString((cudaError_t)error));
	exit(1);
}

void qmk_gpu_must_ok(qmla_status_t status, const char *what)
{
	if (status == QMLA_OK)
		return;
	fprintf(stderr, "GPU benchmark: %s: %s\n", what, qmla_status_text(status));
	exit(1);
}

void *qmk_gpu_bytes(size_t bytes)
{
	void *memory = NULL;

	qmk_gpu_must(cudaMalloc(&memory, bytes), "device memory");
	return memory;
}

void *qmk_gpu_copy(const void *host, size_t bytes)
{
	void *memory = qmk_gpu_bytes(bytes);

	qmk_gpu_must(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
	return memory;
}

void qmk_gpu_free(void *memory)
{
	qmk_gpu_must(cudaFree(memory), "freeing device memory");
}

uint32_t qmk_gpu_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

static void *host_bytes(size_t bytes)
{
	void *memory = malloc(bytes ? bytes : 1);

	qmk_gpu_must_ok(memory ? QMLA_OK : QMLA_ERR_NO_MEMORY, "host memory");
	return memory;
}

uint32_t *qmk_gpu_random_table(uint32_t entries, uint32_t limit, uint64_t *state)
{
	uint32_t *table = host_bytes(entries * sizeof(*table));
	uint32_t *device;

	for (uint32_t i = 0; i < entries; i++)
		table[i] = qmk_gpu_random(state) % limit;
	device = qmk_gpu_copy(table, entries * sizeof(*table));
	free(table);
	return device;
}

void *qmk_gpu_random_bf16(size_t count, uint64_t *state)
{
	uint16_t *host = host_bytes(count * sizeof(*host));
	void *device;

	/* About unit size, sign and mantissa random. */
	for (size_t i = 0; i < count; i++)
		host[i] = (uint16_t)(0x3f00 + qmk_gpu_random(state) % 0x100 +
				     (qmk_gpu_random(state) & 1 ? 0x8000 : 0));
	device = qmk_gpu_copy(host, count * sizeof(*host));
	free(host);
	return device;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

double qmk_gpu_time(void (*run)(void *user, uint32_t k), void *user, uint32_t rotation)
{
	float sample[SAMPLES];
	cudaEvent_t begin, end;

	qmk_gpu_must(cudaEventCreate(&begin), "event");
	qmk_gpu_must(cudaEventCreate(&end), "event");
	for (int i = -2; i < SAMPLES; i++) {
		qmk_gpu_must(cudaEventRecord(begin, NULL), "event");
		for (uint32_t k = 0; k < rotation; k++)
			run(user, k);
		qmk_gpu_must(cudaEventRecord(end, NULL), "event");
		qmk_gpu_must(cudaEventSynchronize(end), "kernel");
		if (i < 0) /* warming up */
			continue;
		qmk_gpu_must(cudaEventElapsedTime(&sample[i], begin, end), "event");
		sample[i] /= (float)rotation;
	}
	qmk_gpu_must(cudaEventDestroy(begin), "event");
	qmk_gpu_must(cudaEventDestroy(end), "event");
	qsort(sample, SAMPLES, sizeof(sample[0]), by_value);
	return (double)sample[SAMPLES / 2];
}

struct copy {
	void *to, *from;
	size_t bytes;
};

static void run_copy(void *user, uint32_t k)
{
	const struct copy *copy = user;

	(void)k;
	qmk_gpu_must(
		cudaMemcpyAsync(copy->to, copy->from, copy->bytes, cudaMemcpyDeviceToDevice, NULL),
		"copy");
}

double qmk_gpu_copy_rate(void)
{
	static double rate;
	struct copy copy = {.bytes = (size_t)1 << 30};
	double ms;

	if (rate > 0)
		return rate;
	copy.to = qmk_gpu_bytes(copy.bytes);
	copy.from = qmk_gpu_bytes(copy.bytes);
	qmk_gpu_must(cudaMemset(copy.from, 0x5a, copy.bytes), "fill");
	ms = qmk_gpu_time(run_copy, &copy, 1);
	rate = 2.0 * (double)copy.bytes / ms;
	printf("{\"bench\":\"copy\",\"ms\":%.4f,\"bytes\":%.0f,\"gbytes_per_s\":%.0f}\n", ms,
	       2.0 * (double)copy.bytes, rate / 1e6);
	qmk_gpu_free(copy.to);
	qmk_gpu_free(copy.from);
	return rate;
}
