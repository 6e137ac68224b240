/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Runs kernels on the CPU: the CTAs of a grid one after another, a CTA's threads as
 * coroutines that change at barriers and shuffles. What this shows is results, bounds of
 * shared memory and barriers that not all threads reach; races between two barriers and speed
 * are a card's matter.
 */
#ifndef TESTS_GPU_ON_CPU_CTA_H
#define TESTS_GPU_ON_CPU_CTA_H

#include <functional>

/** Dynamic shared memory that a CTA can have: sm_90's 227 KiB. */
#define ON_CPU_SHARED (227 * 1024)

extern uint3 threadIdx, blockIdx;

/**
 * Runs @p body as every thread of @p grid; aborts with a message where a barrier is not
 * reached by all threads or the words behind @p shared bytes were written.
 */
void on_cpu_run(dim3 grid, unsigned threads, size_t shared, const std::function<void()> &body);

/** The other threads of the CTA run until they, too, are here. */
void on_cpu_barrier();

/** @p value of the thread whose number differs by the bits of @p mask. */
float on_cpu_exchange(float value, unsigned mask);

#define __syncthreads()                      on_cpu_barrier()
#define __shfl_xor_sync(active, value, mask) on_cpu_exchange(value, mask)

#endif /* TESTS_GPU_ON_CPU_CTA_H */
