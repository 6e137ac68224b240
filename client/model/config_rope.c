/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE and its scalings, in the forms that transformers 4 and 5 write. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/model/config_reader.h"

static void read_yarn(struct qmw_reader *r, const json_t *rope, struct qmw_config *c)
{
	struct qmw_yarn *yarn = &c->yarn;
	const json_t *truncate = qmw_reader_value(rope, "truncate");
	double original =
		qmw_reader_number(r, r->root, "original_max_position_embeddings", 0, 1, 1e12);

	yarn->enabled = true;
	yarn->original_max_position =
		original > 0 ? original
			     : qmw_reader_number(r, rope, "original_max_position_embeddings",
						 c->max_position, 1, 1e12);
	yarn->factor = qmw_reader_number(r, rope, "factor", 0, 1e-3, 1e6);
	if (yarn->factor == 0 && yarn->original_max_position > 0)
		yarn->factor = c->max_position / yarn->original_max_position;
	yarn->beta_fast = qmw_reader_number(r, rope, "beta_fast", 32, 0, 1e6);
	yarn->beta_slow = qmw_reader_number(r, rope, "beta_slow", 1, 0, 1e6);
	/* As in transformers, zero stands for the default. */
	yarn->beta_fast = yarn->beta_fast > 0 ? yarn->beta_fast : 32;
	yarn->beta_slow = yarn->beta_slow > 0 ? yarn->beta_slow : 1;
	yarn->mscale = qmw_reader_number(r, rope, "mscale", 0, 0, 1e3);
	yarn->mscale_all_dim = qmw_reader_number(r, rope, "mscale_all_dim", 0, 0, 1e3);
	yarn->attention_factor = qmw_reader_number(r, rope, "attention_factor", 0, 1e-6, 1e3);
	yarn->truncate = !truncate || !json_is_false(truncate);
}

/* One positive number for each pair. */
static void read_factors(struct qmw_reader *r, const json_t *rope, const char *key, uint32_t pairs,
			 double *factors)
{
	const json_t *list = qmw_reader_value(rope, key);

	if (json_array_size(list) != pairs) {
		qmw_reader_fail(r, QMLA_ERR_FORMAT, key,
				"must be a list of qk_rope_head_dim / 2 numbers");
		return;
	}
	for (uint32_t j = 0; j < pairs; j++) {
		factors[j] = json_number_value(json_array_get(list, j));
		if (!(factors[j] >= 1e-6 && factors[j] <= 1e6))
			qmw_reader_fail(r, QMLA_ERR_FORMAT, key,
					"must hold numbers from 1e-6 to 1e6");
	}
}

/*
 * LongRoPE has other frequencies for texts longer than the original context. A cache
 * block must not depend on how long its text will become: the short factors hold, and
 * the context ends where they do.
 */
static void read_longrope(struct qmw_reader *r, const json_t *rope, struct qmw_config *c)
{
	struct qmw_longrope *longrope = &c->longrope;
	double original =
		qmw_reader_number(r, rope, "original_max_position_embeddings",
				  qmw_reader_number(r, r->root, "original_max_position_embeddings",
						    c->max_position, 1, 1e12),
				  1, 1e12);
	double factor = qmw_reader_number(r, rope, "factor", 0, 1e-3, 1e6);

	if (r->status)
		return;
	longrope->enabled = true;
	read_factors(r, rope, "short_factor", c->rope_dim / 2, longrope->factor);
	if (factor == 0)
		factor = c->max_position / original;
	longrope->attention_factor = qmw_reader_number(r, rope, "attention_factor", 0, 1e-6, 1e3);
	if (longrope->attention_factor == 0)
		longrope->attention_factor =
			factor <= 1 || original <= 1 ? 1 : sqrt(1 + log(factor) / log(original));
	if (original < c->max_position)
		c->max_position = (uint32_t)original;
}

static void read_scaling(struct qmw_reader *r, const json_t *rope, struct qmw_config *c)
{
	const char *type = json_string_value(qmw_reader_value(rope, "rope_type"));
	char what[160];

	if (!type)
		type = json_string_value(qmw_reader_value(rope, "type"));
	if (!type || strcmp(type, "default") == 0)
		return;
	if (strcmp(type, "yarn") == 0) {
		read_yarn(r, rope, c);
		return;
	}
	if (strcmp(type, "longrope") == 0) {
		read_longrope(r, rope, c);
		return;
	}
	snprintf(what, sizeof(what),
		 "is \"%.60s\"; only \"default\", \"yarn\" and \"longrope\" are supported", type);
	qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "rope_type", what);
}

void qmw_reader_rope(struct qmw_reader *r, const struct qmw_family *family, struct qmw_config *c)
{
	const json_t *rope = qmw_reader_value(r->root, "rope_scaling");

	if (!rope)
		rope = qmw_reader_value(r->root, "rope_parameters");
	if (rope && !json_is_object(rope)) {
		qmw_reader_fail(r, QMLA_ERR_FORMAT, "rope_parameters", "must be an object");
		return;
	}
	c->rope_theta =
		qmw_reader_number(r, r->root, "rope_theta", family->rope_theta, 1.0001, 1e12);
	if (qmw_reader_value(rope, "rope_theta"))
		c->rope_theta = qmw_reader_number(r, rope, "rope_theta", -1, 1.0001, 1e12);
	if (qmw_reader_number(r, rope, "partial_rotary_factor", 1, 0, 1) < 1 ||
	    qmw_reader_number(r, r->root, "partial_rotary_factor", 1, 0, 1) < 1)
		qmw_reader_fail(r, QMLA_ERR_UNSUPPORTED, "partial_rotary_factor", "is not 1");
	if (!r->status)
		read_scaling(r, rope, c);
}
