/* SPDX-License-Identifier: Apache-2.0 */
/** @file Temporary checkpoint directories and safetensors files for the tests of client/model. */
#ifndef QMW_TEST_FIXTURE_H
#define QMW_TEST_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "client/model/constants.h"
#include "client/model/model.h"

#define FIXTURE_GOLDEN QMLA_SOURCE_DIR "/tests/golden/"
#define FIXTURE_MLA_S  QMLA_SOURCE_DIR "/tests/data/mla-s"

/** A tensor to be written; elements are float32, stored as @p dtype ("F32", "BF16"). */
struct fixture_tensor {
	char name[96];
	uint32_t rank;
	uint64_t shape[2];
	float *values; /**< freed by fixture_write_tensors */
};

/** A new directory under $TMPDIR; its path is kept in @p path. */
void fixture_make(char path[256]);
/** Removes the directory and the files in it. */
void fixture_remove(const char *path);

/** Writes a file of the directory. */
void fixture_write(const char *directory, const char *name, const void *bytes, size_t length);
/** Reads one; malloc'ed, zero-terminated. */
char *fixture_read(const char *directory, const char *name, size_t *length);
void fixture_delete(const char *directory, const char *name);

/** Copies config.json and the weights (not the calibration) of a checkpoint. */
void fixture_copy(const char *from, const char *directory);

/** Writes float32 tensors as a safetensors file and frees their values. */
void fixture_write_tensors(const char *directory, const char *name, struct fixture_tensor *tensors,
			   size_t count);

/** Replaces the first @p from in a file of the directory by @p to (any lengths). Fails when it is
 * not there. */
void fixture_replace(const char *directory, const char *name, const char *from, const char *to);

/** Same, for the JSON header of a safetensors file: its length is kept up to date. */
void fixture_replace_header(const char *directory, const char *name, const char *from,
			    const char *to);

struct fixture_calibration {
	enum qmw_rotation rotation;
	float mean;      /**< size of random means, 0: none written */
	float feedback;  /**< size of random feedback entries, 0: none */
	bool rope_scale; /**< random scales .5 … 2 */
};

/** Writes quantmla.json and quantmla.safetensors with random constants for the directory's
 * checkpoint. */
void fixture_calibrate(const char *directory, const struct fixture_calibration *calibration);

/** Uniform in [-1, 1), from a seed that advances. */
float fixture_random(uint64_t *seed);

#endif /* QMW_TEST_FIXTURE_H */
