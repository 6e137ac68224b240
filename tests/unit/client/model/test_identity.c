/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/model/identity.h"
#include "client/model/model.h"
#include "tests/unit/client/model/fixture.h"

struct subject {
	uint8_t weights[32], constants[32];
	struct qmk_layout layout;
	struct qmw_config config;
	struct qmw_rope rope;
};

static void make(struct subject *s)
{
	memset(s, 0, sizeof(*s));
	for (uint8_t i = 0; i < 32; i++)
		s->weights[i] = i;
	assert_int_equal(qmk_layout_init(QMK_FORMAT_C4R4, 3, 512, 64, &s->layout), QMLA_OK);
	s->config = (struct qmw_config){.v3 = true,
					.layers = 3,
					.hidden = 256,
					.heads = 4,
					.content_dim = 512,
					.rope_dim = 64,
					.nope_dim = 64,
					.value_dim = 64,
					.norm_eps = 1e-6f,
					.sublayers = 1,
					.latent_scale = 1,
					.query_scale = 1,
					.embedding_scale = 1,
					.residual_scale = 1,
					.head_scale = 1};
	s->rope = (struct qmw_rope){.dim = 64, .amplitude = 1, .softmax_scale = 0.125f};
	for (int j = 0; j < 32; j++)
		s->rope.inv_freq[j] = 1.0f / (float)(UINT64_C(1) << j);
}

static void compute(const struct subject *s, bool round, uint8_t identity[32])
{
	const struct qmw_identity_parts parts = {s->weights, s->constants, &s->layout,
						 &s->config, &s->rope,     round};

	assert_int_equal(qmw_identity_compute(&parts, identity), QMLA_OK);
}

/* The message of identity.h put together and hashed with Python. */
static void test_vector(void **state)
{
	struct subject s;
	uint8_t identity[32];
	char hex[65];

	(void)state;
	make(&s);
	compute(&s, false, identity);
	qmc_hex_encode(identity, sizeof(identity), hex);
	assert_string_equal(hex,
			    "507e80c8ced3c3c7fd7590465189245171b39eacb7d13da5fa7c2f607d21a1bc");
}

/* Whatever decides a block's bytes changes the identity. */
static void test_every_part_counts(void **state)
{
	uint8_t seen[21][32];
	size_t count = 0;

	(void)state;
	for (int what = 0; what <= 20; what++) {
		struct subject s;

		make(&s);
		switch (what) {
		case 1:
			s.weights[31] ^= 1;
			break;
		case 2:
			s.constants[0] ^= 1;
			break;
		case 3:
			qmk_layout_init(QMK_FORMAT_C2R4, 3, 512, 64, &s.layout);
			break;
		case 4:
			s.config.heads = 5;
			break;
		case 5:
			s.config.nope_dim = 32;
			break;
		case 6:
			s.config.norm_eps = 1e-5f;
			break;
		case 7:
			s.config.v3 = false;
			break;
		case 8:
			s.config.tied_embeddings = true;
			break;
		case 9:
			s.rope.pairing = QMK_HALF_SPLIT;
			break;
		case 10:
			s.rope.amplitude = 1.1f;
			break;
		case 11:
			s.rope.softmax_scale = 0.1f;
			break;
		case 12:
			s.rope.inv_freq[31] *= 2;
			break;
		case 13:
			s.config.moe.experts = 8;
			break;
		case 14:
			s.config.moe.experts = 8;
			s.config.moe.top_k = 2;
			break;
		case 15:
			s.config.moe.experts = 8;
			s.config.moe.scale = 2.5f;
			break;
		case 16:
			s.config.residual_scale = 0.5f;
			break;
		case 18: /* other layers with experts: the same tensors may be there for both */
		case 19:
		case 20:
			s.config.moe.experts = 8;
			s.config.moe.sparse[what - 18] = true;
			break;
		default:
			break;
		}
		compute(&s, what == 17, seen[count]);
		for (size_t i = 0; i < count; i++)
			assert_memory_not_equal(seen[i], seen[count], 32);
		count++;
	}
}

/* Of a whole model: the format and the calibration are in it, threads and cache kind are not. */
static void test_models(void **state)
{
	static const struct qmw_model_options options[] = {
		{.threads = 1},
		{.threads = 2, .cache = QMW_CACHE_BF16},
		{.format = QMK_FORMAT_C4R4},
		{.format = QMK_FORMAT_C2R4},
		{.round_bf16 = true},
	};
	uint8_t identities[5][32];

	(void)state;
	for (int i = 0; i < 5; i++) {
		struct qmw_model *model;

		assert_int_equal(
			qmw_model_open(FIXTURE_GOLDEN "v3-f32-rope32-yarn", &options[i], &model),
			QMLA_OK);
		qmw_model_identity(model, identities[i]);
		qmw_model_close(model);
	}
	assert_memory_equal(identities[0], identities[1], 32);
	assert_memory_equal(identities[0], identities[2], 32);
	assert_memory_not_equal(identities[0], identities[3], 32);
	assert_memory_not_equal(identities[0], identities[4], 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vector),
		cmocka_unit_test(test_every_part_counts),
		cmocka_unit_test(test_models),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
