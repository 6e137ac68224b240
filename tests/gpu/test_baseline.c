/* SPDX-License-Identifier: Apache-2.0 */
/* The BF16 baseline held to float64: what packing is timed against must itself be right. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/baseline.h"
#include "kernels/numeric.h"
#include "tests/gpu/case.h"
#include "tests/gpu/device_memory.h"

#define SCALE 0.0721688f

#define BASELINE_BATCH 4u

/* One row of the baseline's reference: keys [total][576], as they are. */
static void baseline_reference(const float *keys, const float *content, const float *rope,
			       uint32_t visible, double *out)
{
	double peak = -INFINITY, sum = 0;

	memset(out, 0, 512 * sizeof(double));
	for (uint32_t t = 0; t < visible; t++) {
		const float *key = keys + (size_t)t * 576;
		double score = 0, grown, p;

		for (uint32_t k = 0; k < 576; k++)
			score += (double)key[k] * (k < 512 ? content[k] : rope[k - 512]);
		score *= SCALE;
		grown = score > peak ? exp(peak - score) : 1;
		peak = score > peak ? score : peak;
		p = exp(score - peak);
		sum = sum * grown + p;
		for (uint32_t k = 0; k < 512; k++)
			out[k] = out[k] * grown + p * key[k];
	}
	for (uint32_t k = 0; k < 512; k++)
		out[k] /= sum;
}

static float *bf16_values(size_t count, uint64_t *state)
{
	float *values = malloc(count * sizeof(*values));

	assert_non_null(values);
	for (size_t i = 0; i < count; i++)
		values[i] = qmk_bf16_to_float(qmk_float_to_bf16(gpu_normal(state)));
	return values;
}

static void the_bf16_baseline_agrees_with_float64(void **state)
{
	static const uint32_t totals[BASELINE_BATCH] = {1000, 64, 1, 391};

	(void)state;
	for (uint32_t queries = 1; queries <= 2; queries++) {
		const struct qmk_ops *cuda = qmk_cuda_ops();
		const uint32_t heads = 16, rows = BASELINE_BATCH * queries, each = 16;
		const size_t bytes = (size_t)BASELINE_BATCH * each * QMK_BASELINE_PAGE_BYTES;
		uint64_t random = 77 + queries;
		float *keys = bf16_values((size_t)BASELINE_BATCH * each * 64 * 576, &random);
		float *content = bf16_values((size_t)rows * heads * 512, &random);
		float *rope = bf16_values((size_t)rows * heads * 64, &random);
		float *got = malloc((size_t)rows * heads * 512 * sizeof(float));
		uint8_t *pool = malloc(bytes);
		uint32_t table[BASELINE_BATCH * 16];
		struct qmk_sequence sequences[BASELINE_BATCH];
		float frequency[32] = {1};
		const struct qmk_rope angles = {QMK_INTERLEAVED,
						device_copy(frequency, sizeof(frequency)), 1};
		struct qmk_layout layout;
		double want[512], error = 0, norm = 0;

		assert_true(got && pool);
		assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, 1, 512, 64, &layout), QMLA_OK);
		for (uint32_t i = 0; i < BASELINE_BATCH * each; i++) {
			table[i] = (i * 37 + 5) % (BASELINE_BATCH * each);
			for (uint32_t t = 0; t < 64; t++)
				for (uint32_t k = 0; k < 576; k++) {
					uint16_t bits = qmk_float_to_bf16(
						keys[((size_t)i * 64 + t) * 576 + k]);

					memcpy(pool + (size_t)table[i] * QMK_BASELINE_PAGE_BYTES +
						       qmk_baseline_at(t, k),
					       &bits, 2);
				}
		}
		for (uint32_t i = 0; i < BASELINE_BATCH; i++)
			sequences[i] = (struct qmk_sequence){.total = totals[i] + queries - 1,
							     .queries = queries,
							     .query_row = i * queries,
							     .packed_end = totals[i] + queries - 1,
							     .table_start = i * each};
		struct qmk_attend_args args = {
			.layout = &layout,
			.rope = &angles,
			.pool = {device_copy(pool, bytes), QMK_BASELINE_PAGE_BYTES},
			.batch = BASELINE_BATCH,
			.heads = heads,
			.rows = rows,
			.max_queries = queries,
			.max_total = 1001,
			.sequences = device_copy(sequences, sizeof(sequences)),
			.block_table = device_copy(table, sizeof(table)),
			.query_content =
				device_copy(content, (size_t)rows * heads * 512 * sizeof(float)),
			.query_rope = device_copy(rope, (size_t)rows * heads * 64 * sizeof(float)),
			.query_dtype = QMK_F32,
			.scale = SCALE,
			.output = device_alloc((size_t)rows * heads * 512 * sizeof(float)),
			.output_dtype = QMK_F32};

		args.workspace_bytes = cuda->attend_workspace(&args);
		args.workspace = device_alloc(args.workspace_bytes);
		assert_int_equal(cuda->plan(&args), QMLA_OK);
		if (qmk_cuda_attend_baseline(&args) == QMLA_ERR_UNSUPPORTED)
			skip(); /* it takes sm_90 */
		device_finish();
		device_read(got, args.output, (size_t)rows * heads * 512 * sizeof(float));
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t h = 0; h < heads; h += 5) {
				const size_t row = (size_t)r * heads + h;
				const uint32_t i = r / queries;

				baseline_reference(keys + (size_t)i * each * 64 * 576,
						   content + row * 512, rope + row * 64,
						   totals[i] + r % queries, want);
				for (uint32_t k = 0; k < 512; k++) {
					const double d = got[row * 512 + k] - want[k];

					error += d * d;
					norm += want[k] * want[k];
				}
			}
		printf("  baseline, %u queries: relative error %.2e\n", queries,
		       sqrt(error / norm));
		assert_true(sqrt(error / norm) <= 5e-3);
		free(keys);
		free(content);
		free(rope);
		free(got);
		free(pool);
		device_release_all();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_bf16_baseline_agrees_with_float64),
	};

	if (!qmk_cuda_ops()) {
		puts("skipped: no CUDA device");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
