/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Who may share cache blocks: SHA-256 over everything that decides a block's
 * bytes. The message is, in order (integers little-endian):
 *
 *   "qmla-identity-v1" and a zero byte
 *   digest of the weights (32)        checkpoint.h
 *   digest of the constants (32)      zero without calibration
 *   layout fingerprint (u64)
 *   geometry: layers, hidden, heads, q_rank, d_c, d_r, d_n, d_v (u32 each)
 *   norm eps (f32), flags (u32: 1 V3, 2 attention bias, 4 tied, 8 MLP bias, 16 BF16 rounding)
 *   RoPE: pairing (u32), amplitude (f32), softmax scale (f32), inv_freq (f32 [d_r / 2])
 *   unless there are no experts and all scales are 1: sub-layers a decoder layer, experts,
 *   zero experts, experts a token, groups, groups chosen, gate, group score, correction,
 *   normalised, shortcut, neighbours, splits, end token of n-grams (u32 each); scales of
 *   experts, latents, queries, embeddings, residuals, head, ratio of n-grams (f32 each)
 *   with experts: a bit for each layer, set where experts follow, layer 0 in the lowest bit of
 *   the first byte, ceil(layers / 8) bytes
 *
 * The calibration is left out of what "ignore calibration" runs, so such a run
 * shares nothing with a calibrated one.
 */
#ifndef QMW_IDENTITY_H
#define QMW_IDENTITY_H

#include <stdint.h>

#include <qmla/status.h>

#include "client/model/config.h"
#include "client/model/rope.h"
#include "common/digest.h"
#include "kernels/layout.h"

struct qmw_identity_parts {
	const uint8_t *weights_digest;   /**< [32] */
	const uint8_t *constants_digest; /**< [32] */
	const struct qmk_layout *layout;
	const struct qmw_config *config;
	const struct qmw_rope *rope;
	bool round_bf16;
};

/** Pure; any thread. QMLA_ERR_NO_MEMORY, QMLA_ERR_INTERNAL. */
qmla_status_t qmw_identity_compute(const struct qmw_identity_parts *parts,
				   uint8_t identity[QMC_SHA256_BYTES]);

#endif /* QMW_IDENTITY_H */
