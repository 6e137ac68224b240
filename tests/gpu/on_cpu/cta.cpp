/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_runtime.h"

#include <stdio.h>
#include <ucontext.h>
#include <vector>

#define STACK_BYTES 65536u
#define GUARD_BYTES 1024u
#define GARBAGE     0x7f /* a large float, an absurd index */

uint3 threadIdx, blockIdx;

/* What `extern __shared__ uint8_t raw[]` names. */
alignas(1024) uint8_t raw[ON_CPU_SHARED + GUARD_BYTES];

namespace
{
struct thread {
	ucontext_t context;
	std::vector<char> stack = std::vector<char>(STACK_BYTES);
	bool ended = false;
	float offered = 0;
};

ucontext_t scheduler;
std::vector<thread> threads;
const std::function<void()> *body;

[[noreturn]] void fail(const char *what)
{
	fprintf(stderr, "CTA %u, %u: %s\n", blockIdx.x, blockIdx.y, what);
	abort();
}

void leave(thread &self)
{
	swapcontext(&self.context, &scheduler);
}

void enter()
{
	thread &self = threads[threadIdx.x];

	(*body)();
	self.ended = true;
	leave(self);
}

void begin(thread &self)
{
	getcontext(&self.context);
	self.context.uc_stack.ss_sp = self.stack.data();
	self.context.uc_stack.ss_size = self.stack.size();
	self.context.uc_link = NULL;
	makecontext(&self.context, enter, 0);
	self.ended = false;
}

/*
 * Every thread to its next barrier or its end; false when all have ended. Every other CTA
 * begins with its last thread: what lacks a barrier then reads too early in one of the two.
 */
bool advance()
{
	const unsigned count = (unsigned)threads.size();
	unsigned waiting = 0;

	for (unsigned n = 0; n < count; n++) {
		const unsigned t = blockIdx.x % 2 ? count - 1 - n : n;

		if (threads[t].ended)
			continue;
		threadIdx.x = t;
		swapcontext(&scheduler, &threads[t].context);
		waiting += !threads[t].ended;
	}
	if (waiting != 0 && waiting != count)
		fail("some threads have ended, others wait at a barrier");
	return waiting != 0;
}

void run_cta(size_t shared)
{
	memset(raw, GARBAGE, sizeof(raw));
	for (thread &self : threads)
		begin(self);
	while (advance())
		;
	for (size_t i = shared; i < sizeof(raw); i++)
		if (raw[i] != GARBAGE)
			fail("wrote past its dynamic shared memory");
}
} // namespace

void on_cpu_run(dim3 grid, unsigned count, size_t shared, const std::function<void()> &run)
{
	if (shared > ON_CPU_SHARED)
		fail("asks for more shared memory than there is");
	threads.resize(count);
	body = &run;
	for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
		for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
			run_cta(shared);
}

void on_cpu_barrier()
{
	leave(threads[threadIdx.x]);
}

float on_cpu_exchange(float value, unsigned mask)
{
	const unsigned self = threadIdx.x;
	float other;

	threads[self].offered = value;
	on_cpu_barrier();
	other = threads[self ^ mask].offered;
	on_cpu_barrier();
	return other;
}
