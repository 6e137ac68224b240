/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The calibration sequences as one attention sub-layer reads them: inputs on the disk,
 * worked on by several threads at once, results taken in the order of the sequences.
 * Training sequences come first, held-out ones behind them.
 */
#ifndef QMW_CALIBRATE_SAMPLES_H
#define QMW_CALIBRATE_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/attention.h"
#include "client/calibrate/row_file.h"
#include "client/model/team.h"

struct qmw_samples {
	const struct qmw_config *config;
	const struct qmw_rope *rope;
	const struct qmw_operator *op;
	const struct qmw_row_file *inputs; /**< blocks of [length][hidden] */
	struct qmw_row_file *outputs;      /**< the exact outputs, same shape; NULL until made */
	struct qmw_team *team;
	uint32_t train, held_out, length;
	uint32_t cache_layer;
	uint64_t seed;
	/** Called between waves; false ends the work with QMLA_ERR_CANCELLED. May be NULL. */
	bool (*go_on)(void *user);
	void *user;
};

/** One sequence in one worker's hands. */
struct qmw_sample {
	uint32_t index; /**< of the sequence */
	uint32_t slot;  /**< scratch number, below qmw_samples_slots */
	const struct qmw_passage *passage;
};

/** Workers at once: slots of scratch that a caller needs. */
uint32_t qmw_samples_slots(const struct qmw_samples *samples);

/** Runs on a worker; what it finds stays in its slot. */
typedef qmla_status_t (*qmw_sample_work)(void *user, const struct qmw_sample *sample);
/** Takes slot @p slot's result; the caller's thread, in the order given. */
typedef void (*qmw_sample_take)(void *user, uint32_t index, uint32_t slot);

/**
 * Calls @p work on each of the @p count sequences @p indices and then @p take for each in
 * that order, so that sums do not depend on the threads. @p take may be NULL. Gives the
 * first failure in order.
 */
qmla_status_t qmw_samples_each(const struct qmw_samples *samples, const uint32_t *indices,
			       uint32_t count, qmw_sample_work work, qmw_sample_take take,
			       void *user);

/** As each, on the sequences first … first + count - 1. */
qmla_status_t qmw_samples_range(const struct qmw_samples *samples, uint32_t first, uint32_t count,
				qmw_sample_work work, qmw_sample_take take, void *user);

/** Computes the exact outputs of all sequences into @p outputs (created, not finished). */
qmla_status_t qmw_samples_outputs(struct qmw_samples *samples, struct qmw_row_file *outputs);

#endif /* QMW_CALIBRATE_SAMPLES_H */
