/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The calibration beside a checkpoint: quantmla.json (what it is, which weights
 * it belongs to) and quantmla.safetensors (arrays of each layer, all optional):
 *
 *   layers.{i}.content_mean      [d_c]        in cache coordinates
 *   layers.{i}.rope_mean         [d_r]        before RoPE
 *   layers.{i}.content_feedback  [d_c, d_c]   unit lower triangular
 *   layers.{i}.content_weight    [d_c]        positive
 *   layers.{i}.rope_feedback     [d_r, d_r]   unit lower triangular
 *   layers.{i}.rope_weight       [d_r]        positive
 *   layers.{i}.cross_feedback    [d_c, d_r]
 *   layers.{i}.content_rotation  [d_c, d_c]   orthogonal, with content_rotation "matrix"
 *   layers.{i}.rope_scale        [d_r / 2]    positive
 *   layers.{i}.content_scale     [d_c]        positive, version 2
 *
 * {i} counts cache layers (attention sub-layers). Latents are cached as z = u R S; R is
 * the identity, the normalised Sylvester Hadamard matrix, or the layer's own. Beside a
 * fused checkpoint R is in the weights already and the identity here; S is in the weight of
 * kv_a_layernorm and is given here so that the cache holds z with it.
 */
#ifndef QMW_CONSTANTS_H
#define QMW_CONSTANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/model/config.h"
#include "common/digest.h"
#include "kernels/layout.h"

/** How rows become codes: this project's writer, or the paper's asymmetric groups of 64. */
enum qmw_quantiser { QMW_QUANTISER_DEFAULT, QMW_QUANTISER_PAPER };

enum qmw_rotation { QMW_ROTATION_IDENTITY, QMW_ROTATION_HADAMARD, QMW_ROTATION_MATRIX };

/** Any pointer may be NULL: identity, zero, plain rounding. All owned. */
struct qmw_layer_constants {
	float *content_mean, *rope_mean;
	float *content_feedback, *content_weight;
	float *rope_feedback, *rope_weight;
	float *content_rotation, *rope_scale;
	float *content_scale;
	float *cross_feedback;
};

struct qmw_constants {
	bool present;     /**< false: nothing was there, every layer is plain */
	uint32_t version; /**< 1, or 2 beside a fused checkpoint; 0 when not present */
	char recipe[96];
	char method[32];              /**< what learned it; empty in version 1 */
	enum qmk_format format;       /**< the packed cache it is meant for, 0: not said */
	enum qmw_quantiser quantiser; /**< the one it was learned for */
	enum qmw_rotation rotation;
	bool scaled;                             /**< content_scale tensors are there */
	uint8_t model_digest[QMC_SHA256_BYTES];  /**< the weights it was made for */
	uint8_t source_digest[QMC_SHA256_BYTES]; /**< of the unfused weights; zero: not said */
	uint8_t digest[QMC_SHA256_BYTES];        /**< of both files; zero when not present */
	uint32_t count;
	struct qmw_layer_constants *layers;
};

/** Reads quantmla.json's text only; fills all but `digest` and the layers. Logs the key at fault.
 */
qmla_status_t qmw_constants_parse(const char *text, size_t length, const char *label,
				  struct qmw_constants *constants);

/**
 * Reads both files of @p directory and checks them: shapes and layers against
 * @p config, the weights' digest against @p weights_digest
 * (QMLA_ERR_IDENTITY_MISMATCH), triangular and orthogonal form, finite values.
 * Without quantmla.json, or with @p ignore, all is plain. Logs what is wrong.
 */
qmla_status_t qmw_constants_open(const char *directory, const struct qmw_config *config,
				 const uint8_t weights_digest[QMC_SHA256_BYTES], bool ignore,
				 struct qmw_constants *constants);
/** The packed format that the weights were calibrated for, C4R4 when that is not said. Pure. */
enum qmk_format qmw_constants_format(const struct qmw_constants *constants);

/** The same from quantmla.json of @p directory alone, for who does not open the model. Without the
 * file C4R4. Errors as parse, QMLA_ERR_IO. */
qmla_status_t qmw_constants_read_format(const char *directory, enum qmk_format *format);

void qmw_constants_close(struct qmw_constants *constants); /**< accepts a zeroed one */

#endif /* QMW_CONSTANTS_H */
