/* SPDX-License-Identifier: Apache-2.0 */
/** @file Transforms as calibration could have learned them, but random. */
#ifndef QMW_RANDOM_TRANSFORM_H
#define QMW_RANDOM_TRANSFORM_H

#include "client/calibrate/transform.h"
#include "client/model/config.h"

enum {
	RANDOM_ROTATION = 1,
	RANDOM_SCALE = 2,     /**< of latents, factors e^-1 … e */
	RANDOM_ROPE = 4,      /**< angles and scales */
	RANDOM_CONSTANTS = 8, /**< means, feedback and weights */
	RANDOM_ALL = 15,
};

/** One for each cache layer; the caller frees them with random_transforms_free. */
struct qmw_transform *random_transforms(const struct qmw_config *config, unsigned what,
					uint64_t seed);
void random_transforms_free(struct qmw_transform *transforms, uint32_t count);

#endif /* QMW_RANDOM_TRANSFORM_H */
