/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Internal to a calibration: its state, and the parts of its work. calibrate.c begins and
 * ends it, run_learn.c learns the layers, run_finish.c makes the checkpoint.
 */
#ifndef QMW_CALIBRATE_RUN_H
#define QMW_CALIBRATE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/calibrate.h"
#include "client/calibrate/corpus.h"
#include "client/calibrate/walk.h"
#include "client/calibrate/workplace.h"
#include "client/model/team.h"

struct qmw_run {
	const struct qmw_calibrate_job *job;
	struct qmw_corpus corpus;
	struct qmw_workplace *workplace;
	struct qmw_stream *stream;
	struct qmw_team *team;
	struct qmw_walk walk;
	uint32_t layers; /* cache layers */
	struct qmw_transform *transforms;
	struct qmw_layer_figures *figures;
	bool *known; /* [layers]: learned, by this run or an earlier one */
	uint32_t continued;
	uint32_t at; /* cache layer at work */
	bool cancelled;
};

/** Passes @p progress on, with the number of layers filled in; false: the run is to end. */
bool qmw_run_tell(struct qmw_run *run, struct qmw_calibrate_progress progress);

/** Learns every cache layer that an earlier run has not. */
qmla_status_t qmw_run_learn(struct qmw_run *run);

/** Fuses, verifies and delivers; fills the report's fused and verified. */
qmla_status_t qmw_run_finish(struct qmw_run *run, struct qmw_calibrate_report *report);

#endif /* QMW_CALIBRATE_RUN_H */
