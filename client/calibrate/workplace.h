/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The folder in which a calibration runs, beside its output: "OUT.calibrate". It holds who
 * it belongs to (run.json: model files, texts, options), a lock, the learned layers and the
 * rows of the layer at work. The same command run again continues there.
 */
#ifndef QMW_CALIBRATE_WORKPLACE_H
#define QMW_CALIBRATE_WORKPLACE_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/digest.h"

struct qmw_workplace;

struct qmw_workplace_options {
	const char *model, *output;
	const char *run; /**< text that fixes the result beside the model's files */
	bool force;      /**< another run's folder, and an old calibration at output, may go */
};

/**
 * Checks @p output (not the model itself; nothing there, or an empty directory, or with
 * force a former calibration) and makes or enters the folder. Logs what is wrong and the
 * remedy: QMLA_ERR_INVALID_ARGUMENT (output is the model), QMLA_ERR_ALREADY_EXISTS,
 * QMLA_ERR_BUSY (another process works there), QMLA_ERR_PERMISSION, QMLA_ERR_NO_SPACE, …
 */
qmla_status_t qmw_workplace_open(const struct qmw_workplace_options *options,
				 struct qmw_workplace **workplace);

/** Closes; the folder stays for a later run. Accepts NULL. */
void qmw_workplace_close(struct qmw_workplace *workplace);

/** True when it was there already: the run continues. */
bool qmw_workplace_resumed(const struct qmw_workplace *workplace);

/** Path of a file in it, malloc'ed; NULL without memory. "%03u" of @p number is put in for '#'. */
char *qmw_workplace_path(const struct qmw_workplace *workplace, const char *name, uint32_t number);

/** Digest of run, @p name and @p number: what marks a file as this run's. */
qmla_status_t qmw_workplace_tag(const struct qmw_workplace *workplace, const char *name,
				uint32_t number, uint8_t tag[QMC_SHA256_BYTES]);

/** Removes a file in it if it is there. */
void qmw_workplace_drop(const struct qmw_workplace *workplace, const char *name, uint32_t number);

/** Removes the files and folders in it whose names begin with @p prefix. Logs. */
qmla_status_t qmw_workplace_sweep(const struct qmw_workplace *workplace, const char *prefix);

/** QMLA_ERR_NO_SPACE, logged, when the file system has less than @p bytes left. */
qmla_status_t qmw_workplace_room(const struct qmw_workplace *workplace, uint64_t bytes);

/** Puts the directory @p name of the folder at the output's place, then removes the folder. */
qmla_status_t qmw_workplace_deliver(struct qmw_workplace *workplace, const char *name);

#endif /* QMW_CALIBRATE_WORKPLACE_H */
