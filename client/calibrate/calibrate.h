/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * A whole calibration: streams sequences through a checkpoint layer by layer, learns each
 * attention sub-layer's transform, fuses all into a checkpoint of the same names and shapes,
 * proves that it is the same function, and puts it in place. Memory: one decoder layer's
 * weights and a few sequences a thread; hidden states lie on the disk.
 */
#ifndef QMW_CALIBRATE_CALIBRATE_H
#define QMW_CALIBRATE_CALIBRATE_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/calibrate/fuse_checkpoint.h"
#include "client/calibrate/method.h"
#include "client/calibrate/verify.h"

/** What the run is doing; passed to qmw_calibrate_job.progress. */
enum qmw_calibrate_stage {
	QMW_STAGE_RUN,    /**< sequences through a decoder layer */
	QMW_STAGE_LEARN,  /**< steps of the paper's method */
	QMW_STAGE_LAYER,  /**< a cache layer is learned and measured: figures is set */
	QMW_STAGE_FUSE,   /**< bytes written */
	QMW_STAGE_VERIFY, /**< layers compared */
};

struct qmw_calibrate_progress {
	enum qmw_calibrate_stage stage;
	uint32_t cache_layer, cache_layers;
	const char *path; /**< "content" or "RoPE" while learning, else NULL */
	uint64_t done, of;
	const struct qmw_layer_figures *figures; /**< of a finished layer, else NULL */
	double seconds; /**< that a finished layer took; 0: taken over from an earlier run */
};

struct qmw_calibrate_job {
	const char *model, *output;
	const uint32_t *tokens; /**< the texts, one behind the other */
	uint64_t token_count;
	uint32_t length, train, held_out; /**< sequences, as many as there are */
	struct qmw_method_options method; /**< its progress is taken by the job's */
	const char *cache;                /**< "c4r4" or "c2r4" */
	uint64_t seed;
	uint32_t threads; /**< 0: one a processor */
	bool force;
	double loss_bound;      /**< nats a token that the fused weights may cost; 0: 0.002 */
	const char *created_by; /**< for quantmla.json, may be NULL */
	/** False ends the run with QMLA_ERR_CANCELLED; it can be continued. May be NULL. */
	bool (*progress)(void *user, const struct qmw_calibrate_progress *progress);
	void *user;
};

struct qmw_calibrate_report {
	uint32_t train, held_out;          /**< sequences that were used */
	uint32_t layers;                   /**< cache layers */
	uint32_t continued;                /**< of them, taken over from an earlier run */
	struct qmw_layer_figures *figures; /**< [layers]; freed with qmw_calibrate_report_free */
	struct qmw_fuse_report fused;
	struct qmw_verify_report verified;
};

/**
 * Runs a calibration. Blocks for minutes to hours. One run a process at a time (it sets the
 * BLAS to one thread and spreads sequences over its own). Logs what is wrong. Nothing is at
 * job->output before all of it is verified. @p report is written on success, and when the
 * proof of equivalence fails: QMLA_ERR_INTERNAL then, and its verified.differs is true.
 */
qmla_status_t qmw_calibrate(const struct qmw_calibrate_job *job,
			    struct qmw_calibrate_report *report);
void qmw_calibrate_report_free(struct qmw_calibrate_report *report); /**< accepts a zeroed one */

#endif /* QMW_CALIBRATE_CALIBRATE_H */
