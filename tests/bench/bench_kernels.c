/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Speed of the CPU kernels on one core, one JSON line a case, each beside a limit
 * measured in the same run: the rate of memcpy, or of fused multiply-adds that
 * stay in registers. Usage: bench_kernels [filter [cpu-base|cpu-avx2|cpu-avx512]]
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/block.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/ops.h"

#define CONTENT 512u
#define ROPE    64u
#define HEADS   8u
#define SECONDS 0.25 /* each case runs at least so long */

static const char *filter = "";
static const struct qmk_cpu_table *table; /* the variant under test */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time); /* a busy machine takes none of it */
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *allocate(size_t bytes)
{
	void *memory = aligned_alloc(128, (bytes + 127) / 128 * 128);

	if (!memory) {
		fprintf(stderr, "bench_kernels: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	return memory;
}

static float random_float(void)
{
	static uint64_t state = 1;
	float sum = 0;

	for (unsigned i = 0; i < 4; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		sum += (float)(state >> 40) * 0x1p-24f - 0.5f;
	}
	return sum * 1.732f;
}

static float *random_floats(size_t count)
{
	float *values = allocate(count * sizeof(float));

	for (size_t i = 0; i < count; i++)
		values[i] = random_float();
	return values;
}

/* Best of several runs: what the code can do, not what the neighbours allow. */
static double seconds_of(void (*run)(void *), void *context)
{
	double best = INFINITY, begin = now();

	do {
		double start = now(), taken;

		run(context);
		taken = now() - start;
		best = taken < best ? taken : best;
	} while (now() - begin < SECONDS);
	return best;
}

static void report(const char *name, double value, const char *unit, double limit,
		   const char *limit_name, double share)
{
	printf("{\"bench\":\"kernels\",\"cpu\":\"%s\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%"
	       "s\","
	       "\"limit\":%.4g,\"limit_is\":\"%s\",\"share\":%.3f}\n",
	       table->ops.name, name, value, unit, limit, limit_name, share);
	fflush(stdout);
}

/* Limits. */

struct copy {
	uint8_t *from, *to;
	size_t bytes;
};

static void run_copy(void *context)
{
	struct copy *copy = context;

	memcpy(copy->to, copy->from, copy->bytes);
	__asm__ volatile("" ::"r"(copy->to) : "memory");
}

/* Sixteen independent sums of one register each: more than latency needs, no memory. */
#define DEFINE_MULTIPLY_ADD(name, bytes, storage)                                                  \
	typedef float name##_vector __attribute__((vector_size(bytes)));                           \
	storage void name(float *memory, float factor, uint32_t rounds)                            \
	{                                                                                          \
		name##_vector sum[SUMS];                                                           \
                                                                                                   \
		memcpy(sum, memory, sizeof(sum));                                                  \
		for (uint32_t i = 0; i < rounds; i++)                                              \
			for (unsigned k = 0; k < SUMS; k++)                                        \
				sum[k] = sum[k] * factor + factor;                                 \
		memcpy(memory, sum, sizeof(sum));                                                  \
	}

#define SUMS 12
DEFINE_MULTIPLY_ADD(multiply_add_base, 16, static)
#if defined(__x86_64__)
DEFINE_MULTIPLY_ADD(multiply_add_avx2, 32, __attribute__((target("avx2,fma"))) static)
DEFINE_MULTIPLY_ADD(multiply_add_avx512, 64, __attribute__((target("avx2,fma,avx512f"))) static)
#endif

#define MULTIPLY_ROUNDS 100000u

static void run_multiply_add(void *context)
{
#if defined(__x86_64__)
	if (strcmp(table->ops.name, "cpu-avx512") == 0)
		multiply_add_avx512(context, 0.5f, MULTIPLY_ROUNDS);
	else if (strcmp(table->ops.name, "cpu-avx2") == 0)
		multiply_add_avx2(context, 0.5f, MULTIPLY_ROUNDS);
	else
#endif
		multiply_add_base(context, 0.5f, MULTIPLY_ROUNDS);
}

/* Floats of one register of the variant under test. */
static unsigned lanes(void)
{
	if (strcmp(table->ops.name, "cpu-avx512") == 0)
		return 16;
	return strcmp(table->ops.name, "cpu-avx2") == 0 ? 8 : 4;
}

static double copy_rate;     /* bytes a second */
static double multiply_rate; /* multiply-adds a second */

static void measure_limits(void)
{
	struct copy copy = {.bytes = 256u << 20};
	float *sum = allocate(SUMS * 16 * sizeof(*sum));

	copy.from = allocate(copy.bytes);
	copy.to = allocate(copy.bytes);
	memset(copy.from, 1, copy.bytes);
	memset(copy.to, 2, copy.bytes);
	memset(sum, 0, SUMS * 16 * sizeof(*sum));
	copy_rate = (double)copy.bytes / seconds_of(run_copy, &copy);
	multiply_rate =
		(double)SUMS * lanes() * MULTIPLY_ROUNDS / seconds_of(run_multiply_add, sum);
	report("memcpy", copy_rate * 1e-9, "GB/s", copy_rate * 1e-9, "itself", 1);
	report("multiply_add", multiply_rate * 1e-9, "GMAC/s", multiply_rate * 1e-9, "itself", 1);
	free(copy.from);
	free(copy.to);
	free(sum);
}

/* Cases. One pool of packed pages serves all. */

struct pages {
	struct qmk_layout layout;
	struct qmk_pool pool;
	uint32_t blocks;
	uint32_t *slots; /* a shuffled order */
	float *content, *rope;
	void *workspace;
	struct qmk_constants constants;
	struct qmk_pack_args pack;
};

static void pages_init(struct pages *pages, enum qmk_format format, uint32_t blocks)
{
	memset(pages, 0, sizeof(*pages));
	if (qmk_layout_init(format, 1, CONTENT, ROPE, &pages->layout) != QMLA_OK)
		exit(1);
	pages->blocks = blocks;
	pages->pool.stride = pages->layout.block_bytes;
	pages->pool.base = allocate(blocks * pages->pool.stride);
	pages->slots = allocate(blocks * sizeof(uint32_t));
	for (uint32_t i = 0; i < blocks; i++)
		pages->slots[i] = (uint32_t)((uint64_t)i * 7919 % blocks);
	pages->content = random_floats(64 * CONTENT);
	pages->rope = random_floats(64 * ROPE);
	pages->pack = (struct qmk_pack_args){
		.layout = &pages->layout,
		.constants = &pages->constants,
		.pool = pages->pool,
		.pages = 1,
		.slots = pages->slots,
		.content = pages->content,
		.rope = pages->rope,
		.content_stride = CONTENT,
		.rope_stride = ROPE,
		.dtype = QMK_F32,
	};
	pages->workspace = allocate(table->ops.pack_workspace(&pages->pack));
	pages->pack.workspace = pages->workspace;
}

static void pages_fini(struct pages *pages)
{
	free(pages->pool.base);
	free(pages->slots);
	free(pages->content);
	free(pages->rope);
	free(pages->workspace);
	free((void *)(uintptr_t)pages->constants.content_feedback);
	free((void *)(uintptr_t)pages->constants.rope_feedback);
	free((void *)(uintptr_t)pages->constants.cross_feedback);
}

static float *random_feedback(uint32_t dim)
{
	float *feedback = random_floats((size_t)dim * dim);

	for (uint32_t i = 0; i < dim; i++)
		for (uint32_t j = 0; j < dim; j++)
			feedback[(size_t)i * dim + j] =
				i == j  ? 1
				: i > j ? 0.05f * feedback[(size_t)i * dim + j]
					: 0;
	return feedback;
}

static float *random_feedback_below(uint32_t rows, uint32_t columns)
{
	float *feedback = random_floats((size_t)rows * columns);

	for (size_t i = 0; i < (size_t)rows * columns; i++)
		feedback[i] *= 0.05f;
	return feedback;
}

static void fill_pool(struct pages *pages)
{
	for (uint32_t i = 0; i < pages->blocks; i++) {
		pages->pack.slots = pages->slots + i;
		pages->content[i % (64 * CONTENT)] = random_float();
		(void)table->ops.pack(&pages->pack);
	}
	pages->pack.slots = pages->slots;
}

static void run_pack(void *context)
{
	struct pages *pages = context;

	if (table->ops.pack(&pages->pack) != QMLA_OK)
		exit(1);
}

static void bench_pack(enum qmk_format format, bool feedback)
{
	char name[64];
	struct pages pages;
	double rate;

	snprintf(name, sizeof(name), "pack_%s%s", qmk_format_name(format),
		 feedback ? "_feedback" : "");
	if (!strstr(name, filter))
		return;
	pages_init(&pages, format, 8);
	if (feedback) {
		pages.constants.content_feedback = random_feedback(CONTENT);
		pages.constants.rope_feedback = random_feedback(ROPE);
		pages.constants.cross_feedback = random_feedback_below(CONTENT, ROPE);
	}
	rate = 64 / seconds_of(run_pack, &pages);
	report(name, rate, "token-layers/s", 20000, "target", rate / 20000);
	pages_fini(&pages);
}

struct unpack_case {
	struct pages pages;
	struct qmk_unpack_args args;
};

static void run_unpack(void *context)
{
	struct unpack_case *self = context;

	if (table->ops.unpack(&self->args) != QMLA_OK)
		exit(1);
}

static void bench_unpack(enum qmk_format format)
{
	char name[64];
	struct unpack_case self;
	double bytes = 64.0 * 64 * (CONTENT + ROPE) * sizeof(float), rate;

	snprintf(name, sizeof(name), "unpack_%s", qmk_format_name(format));
	if (!strstr(name, filter))
		return;
	pages_init(&self.pages, format, 64);
	fill_pool(&self.pages);
	self.args = (struct qmk_unpack_args){
		.layout = &self.pages.layout,
		.pool = self.pages.pool,
		.pages = 64,
		.slots = self.pages.slots,
		.content = random_floats(64 * 64 * CONTENT),
		.rope = random_floats(64 * 64 * ROPE),
		.content_stride = CONTENT,
		.rope_stride = ROPE,
		.dtype = QMK_F32,
	};
	rate = bytes / seconds_of(run_unpack, &self);
	report(name, rate * 1e-9, "GB/s written", copy_rate * 1e-9, "memcpy", rate / copy_rate);
	free(self.args.content);
	free(self.args.rope);
	pages_fini(&self.pages);
}

static void run_checksum(void *context)
{
	struct pages *pages = context;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < pages->blocks; i++)
		sum ^= table->page_checksum((uint8_t *)pages->pool.base + i * pages->pool.stride +
						    pages->layout.header_bytes,
					    pages->layout.page_bytes);
	__asm__ volatile("" ::"r"(sum));
}

static void bench_checksum(uint32_t blocks, const char *name)
{
	struct pages pages;
	double rate;

	if (!strstr(name, filter))
		return;
	pages_init(&pages, QMK_FORMAT_C4R4, blocks);
	memset(pages.pool.base, 3, blocks * pages.pool.stride);
	rate = (double)blocks * pages.layout.page_bytes / seconds_of(run_checksum, &pages);
	report(name, rate * 1e-9, "GB/s", copy_rate * 1e-9, "memcpy", rate / copy_rate);
	pages_fini(&pages);
}

struct attend_case {
	struct pages pages;
	struct qmk_attend_args args;
	struct qmk_sequence sequence;
	struct qmk_rope rope;
	float inv_freq[ROPE / 2];
};

static void run_attend(void *context)
{
	struct attend_case *self = context;

	if (table->ops.attend(&self->args) != QMLA_OK)
		exit(1);
}

static void attend_init(struct attend_case *self, enum qmk_format format, uint32_t tokens,
			uint32_t queries, bool packed)
{
	size_t rows = (size_t)queries * HEADS;
	uint16_t *recent = NULL;

	memset(self, 0, sizeof(*self));
	pages_init(&self->pages, format, packed ? tokens / 64 : 1);
	fill_pool(&self->pages);
	if (!packed) {
		recent = allocate((size_t)tokens * (CONTENT + ROPE) * sizeof(uint16_t));
		for (size_t i = 0; i < (size_t)tokens * (CONTENT + ROPE); i++)
			recent[i] = (uint16_t)(0x3c00 + i * 7919 % 1024 + (i & 1) * 0x8000);
	}
	for (uint32_t j = 0; j < ROPE / 2; j++)
		self->inv_freq[j] = powf(10000, -(float)j / (ROPE / 2));
	self->rope = (struct qmk_rope){QMK_INTERLEAVED, self->inv_freq, 1};
	self->sequence = (struct qmk_sequence){.total = tokens,
					       .queries = queries,
					       .packed_end = packed ? tokens : 0,
					       .recent_rows = recent};
	self->args = (struct qmk_attend_args){
		.layout = &self->pages.layout,
		.rope = &self->rope,
		.pool = self->pages.pool,
		.batch = 1,
		.heads = HEADS,
		.rows = queries,
		.sequences = &self->sequence,
		.block_table = self->pages.slots,
		.query_content = random_floats(rows * CONTENT),
		.query_rope = random_floats(rows * ROPE),
		.scale = 0.07f,
		.output = random_floats(rows * CONTENT),
	};
	self->args.workspace_bytes = table->ops.attend_workspace(&self->args);
	self->args.workspace = allocate(self->args.workspace_bytes);
}

static void bench_attend(enum qmk_format format, uint32_t tokens, uint32_t queries, bool packed)
{
	char name[96];
	struct attend_case self;
	double row_bytes, seconds, arithmetic, memory, limit;

	snprintf(name, sizeof(name), "attend_%s_%" PRIu32 "_tokens_%" PRIu32 "_queries",
		 packed ? qmk_format_name(format) : "bf16", tokens, queries);
	if (!strstr(name, filter))
		return;
	attend_init(&self, format, tokens, queries, packed);
	row_bytes = packed ? qmk_layout_token_bytes(&self.pages.layout) : 2 * (CONTENT + ROPE);
	seconds = seconds_of(run_attend, &self) / tokens;
	arithmetic = (double)queries * HEADS * (2 * CONTENT + ROPE) / multiply_rate;
	/* memcpy reads and writes; attention only reads. */
	memory = row_bytes / (2 * copy_rate);
	limit = arithmetic > memory ? arithmetic : memory;
	report(name, seconds * 1e9, "ns/token", limit * 1e9,
	       arithmetic > memory ? "multiply_add" : "memcpy", limit / seconds);
	free((void *)(uintptr_t)self.args.query_content);
	free((void *)(uintptr_t)self.args.query_rope);
	free((void *)(uintptr_t)self.sequence.recent_rows);
	free(self.args.output);
	free(self.args.workspace);
	pages_fini(&self.pages);
}

int main(int argc, char **argv)
{
	static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_C2R4,
						  QMK_FORMAT_PAPER_C4R4};

	if (argc > 1)
		filter = argv[1];
	table = qmk_cpu_best();
	for (unsigned i = 0; argc > 2; i++) {
		table = qmk_cpu_variant(i);
		if (!table) {
			fprintf(stderr, "bench_kernels: this processor has no %s\n", argv[2]);
			return 1;
		}
		if (strcmp(table->ops.name, argv[2]) == 0)
			break;
	}
	measure_limits();
	bench_checksum(32, "checksum_cached");
	bench_checksum(8192, "checksum_memory");
	for (unsigned f = 0; f < 3; f++) {
		bench_pack(formats[f], false);
		if (formats[f] != QMK_FORMAT_PAPER_C4R4)
			bench_pack(formats[f], true);
	}
	for (unsigned f = 0; f < 3; f++)
		bench_unpack(formats[f]);
	for (unsigned f = 0; f < 3; f++)
		bench_attend(formats[f], 32768, 1, true);
	bench_attend(QMK_FORMAT_C4R4, 32768, 1, false);
	bench_attend(QMK_FORMAT_C4R4, 256, 1, true);
	bench_attend(QMK_FORMAT_C4R4, 4096, 32, true);
	bench_attend(QMK_FORMAT_C4R4, 1024, 256, true);
	return 0;
}
