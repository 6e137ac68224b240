/* SPDX-License-Identifier: Apache-2.0 */
/* Expected values: transformers 5.17 (DeepseekV3RotaryEmbedding, yarn_apply_mscale). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/model/rope.h"

struct expectation {
	uint32_t dim, nope;
	double theta;
	struct qmw_yarn yarn;
	double amplitude, scale;
	double inv_freq[8]; /* of pairs 0 1 5 8 10 12 15 20 */
};

static const struct expectation expectations[] = {
	{64,
	 128,
	 10000,
	 {0},
	 1,
	 0.0721687836,
	 {1, 0.749894202, 0.237137362, 0.100000001, 0.0562341288, 0.0316227786, 0.0133352149,
	  0.00316227786}},
	/* DeepSeek-V3 */
	{64,
	 128,
	 10000,
	 {true, 40, 32, 1, 1, 1, 0, 4096, true},
	 1,
	 0.135233779,
	 {1, 0.749894202, 0.237137362, 0.100000001, 0.0562341288, 0.0268793609, 0.0083345091,
	  0.000790569407}},
	/* DeepSeek-V2-Lite */
	{64,
	 128,
	 10000,
	 {true, 40, 32, 1, .707, .707, 0, 4096, true},
	 1,
	 0.114721387,
	 {1, 0.749894202, 0.237137362, 0.100000001, 0.0562341288, 0.0268793609, 0.0083345091,
	  0.000790569407}},
	{64,
	 128,
	 50000,
	 {true, 8, 32, 1, .707, 1.2, 0, 64, true},
	 0.917956173,
	 0.11267948,
	 {1, 0.623972237, 0.0691539794, 0.00835925434, 0.00425090967, 0.00216170424, 0.000783912954,
	  0.000144561869}},
	{64,
	 16,
	 10000,
	 {true, 8, 32, 1, 0, 0, 0, 64, false},
	 1.20794415,
	 0.111803399,
	 {1, 0.668525457, 0.108482137, 0.0131944576, 0.0070292661, 0.00395284733, 0.00166690187,
	  0.000395284733}},
	{64,
	 128,
	 10000,
	 {true, 8, 16, 2, 0, 0, 1.5, 4096, true},
	 1.5,
	 0.0721687836,
	 {1, 0.749894202, 0.237137362, 0.100000001, 0.0562341288, 0.0316227786, 0.00944577716,
	  0.000702728401}},
};

static void assert_near(double a, double b, double relative)
{
	if (!(fabs(a - b) <= relative * fabs(b)))
		fail_msg("%.9g is not %.9g", a, b);
}

static struct qmw_rope make(const struct expectation *e, bool interleave)
{
	struct qmw_config config = {.rope_dim = e->dim,
				    .nope_dim = e->nope,
				    .rope_theta = e->theta,
				    .rope_interleave = interleave,
				    .yarn = e->yarn};
	struct qmw_rope rope;

	qmw_rope_init(&config, &rope);
	return rope;
}

static void test_frequencies(void **state)
{
	static const uint32_t pairs[8] = {0, 1, 5, 8, 10, 12, 15, 20};

	(void)state;
	for (size_t i = 0; i < sizeof(expectations) / sizeof(expectations[0]); i++) {
		struct qmw_rope rope = make(&expectations[i], true);

		assert_near((double)rope.amplitude, expectations[i].amplitude, 1e-6);
		assert_near((double)rope.softmax_scale, expectations[i].scale, 1e-6);
		for (int k = 0; k < 8; k++)
			assert_near((double)rope.inv_freq[pairs[k]], expectations[i].inv_freq[k],
				    2e-7);
	}
}

/* A rotation keeps each pair's length and turns it by position times frequency. */
static void check_rotation(bool interleave)
{
	struct qmw_rope rope = make(&expectations[0], interleave);
	float cosines[32], sines[32], vector[64];

	qmw_rope_angles(&rope, 1000, cosines, sines);
	for (uint32_t i = 0; i < 64; i++)
		vector[i] = (float)i + 1;
	qmw_rope_rotate(&rope, cosines, sines, vector);
	for (uint32_t j = 0; j < 32; j++) {
		uint32_t a = interleave ? 2 * j : j, b = interleave ? 2 * j + 1 : j + 32;
		double angle = 1000.0 * (double)rope.inv_freq[j];
		double x = a + 1, y = b + 1;

		assert_true(fabs((double)vector[a] - (x * cos(angle) - y * sin(angle))) < 5e-3);
		assert_true(fabs((double)vector[b] - (y * cos(angle) + x * sin(angle))) < 5e-3);
	}
}

static void test_rotation(void **state)
{
	(void)state;
	check_rotation(true);
	check_rotation(false);
}

static void test_amplitude_scales(void **state)
{
	struct qmw_rope rope = make(&expectations[5], true);
	float cosines[32], sines[32];

	(void)state;
	qmw_rope_angles(&rope, 0, cosines, sines);
	assert_near((double)cosines[3], 1.5, 1e-7);
	assert_true(sines[3] == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_frequencies),
		cmocka_unit_test(test_rotation),
		cmocka_unit_test(test_amplitude_scales),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
