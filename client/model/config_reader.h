/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Typed values out of config.json, for the files that read one family's. The first
 * failure is logged with its key and kept; later reads do nothing of note.
 */
#ifndef QMW_CONFIG_READER_H
#define QMW_CONFIG_READER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/model/config.h"

#define QMW_DIM_MAX (1u << 20)

struct qmw_reader {
	const char *label; /**< of the file, in messages */
	const json_t *root;
	qmla_status_t status; /**< the first failure */
};

/** What a model_type is called, and what its configuration means. */
struct qmw_family {
	const char *model_type, *label, *architecture;
	const char *layers_key, *intermediate_key;
	uint32_t sublayers;
	double norm_eps, rope_theta; /**< when they are missing */
	bool tied;
	/** The rest: gates, scales, which layers have experts. */
	void (*read)(struct qmw_reader *reader, struct qmw_config *config);
};

extern const struct qmw_family qmw_family_deepseek_v2, qmw_family_deepseek_v3, qmw_family_kimi_k2;
extern const struct qmw_family qmw_family_glm4_moe_lite, qmw_family_longcat_flash;
extern const struct qmw_family qmw_family_longcat_flash_ngram, qmw_family_minicpm3;

/** Logs that @p key @p what, unless something failed before. */
void qmw_reader_fail(struct qmw_reader *reader, qmla_status_t status, const char *key,
		     const char *what);

/** The value of @p key, NULL when it is missing or null. */
const json_t *qmw_reader_value(const json_t *object, const char *key);

/** An integer in [@p min, @p max]; @p missing < 0: it must be there. */
uint32_t qmw_reader_count(struct qmw_reader *reader, const char *key, int64_t missing, uint32_t min,
			  uint32_t max);

bool qmw_reader_flag(struct qmw_reader *reader, const char *key, bool missing);

/** A finite number in [@p min, @p max]; a negative @p missing: it must be there. */
double qmw_reader_number(struct qmw_reader *reader, const json_t *object, const char *key,
			 double missing, double min, double max);

/** Fails with QMLA_ERR_UNSUPPORTED when @p key is there and not the string @p only. */
void qmw_reader_only(struct qmw_reader *reader, const char *key, const char *only);

/** Theta, scaling and their parameters, of rope_parameters or rope_scaling. */
void qmw_reader_rope(struct qmw_reader *reader, const struct qmw_family *family,
		     struct qmw_config *config);

/**
 * What transformers' class of a family takes for a key that is missing. Negative: it has no
 * such class, or none that could run; the key must be there.
 */
struct qmw_expert_defaults {
	int32_t dense;              /**< first_k_dense_replace */
	int32_t shared;             /**< n_shared_experts */
	int32_t groups, top_groups; /**< n_group, topk_group */
	double scale;               /**< routed_scaling_factor */
};

/** Fails when @p key is there and null, which stands for no number: a default would be a guess. */
void qmw_reader_no_null(struct qmw_reader *reader, const char *key);

/**
 * Routed and shared experts as DeepSeek names them, and which layers have them: from
 * first_k_dense_replace on. No experts: every layer is dense.
 */
void qmw_reader_experts(struct qmw_reader *reader, const struct qmw_expert_defaults *missing,
			struct qmw_config *config);

/** n_group and topk_group. */
void qmw_reader_groups(struct qmw_reader *reader, const struct qmw_expert_defaults *missing,
		       struct qmw_config *config);

/** DeepSeek-V3's gate, groups included: sigmoid scores, a correction for the choice alone. */
void qmw_reader_sigmoid_gate(struct qmw_reader *reader, const struct qmw_expert_defaults *missing,
			     struct qmw_config *config);

/** Checks what routing takes for granted: groups divide the experts, enough are left to choose. */
void qmw_reader_check_experts(struct qmw_reader *reader, const struct qmw_config *config);

#endif /* QMW_CONFIG_READER_H */
