/* SPDX-License-Identifier: Apache-2.0 */
/** @file Calibration sequences of a random sub-layer, for the tests of what learns from them. */
#ifndef QMW_TEST_SEQUENCES_H
#define QMW_TEST_SEQUENCES_H

#include "client/calibrate/samples.h"
#include "tests/unit/client/calibrate/layer.h"

struct sequences {
	struct layer layer;
	struct qmw_samples samples;
	struct qmw_operator *op;
	struct qmw_team *team;
	struct qmw_row_file *inputs, *outputs;
	char folder[64];
};

/** @p train + @p held_out sequences of random inputs; their exact outputs are there too. */
void sequences_make(const struct layer_shape *shape, uint32_t train, uint32_t held_out,
		    uint32_t threads, struct sequences *sequences);
void sequences_free(struct sequences *sequences);

#endif /* QMW_TEST_SEQUENCES_H */
