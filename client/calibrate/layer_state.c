/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/layer_state.h"

#include <stdlib.h>
#include <string.h>

#include "client/calibrate/disk.h"
#include "client/model/file.h"
#include "common/log.h"

#define COMPONENT "calibrate"
#define MAGIC     "QMLALYR1"
#define ARRAYS    11
#define LIMIT     ((size_t)256 << 20)

struct header {
	char magic[8];
	uint8_t tag[QMC_SHA256_BYTES];
	uint32_t content_dim, rope_dim;
	uint32_t present; /* bit i: array i follows */
	uint32_t figures; /* bytes */
};

/* The arrays in their order in the file. */
static void list_arrays(struct qmw_transform *t, double **arrays[ARRAYS], size_t counts[ARRAYS])
{
	size_t d_c = t->content_dim, d_r = t->rope_dim;
	double **const all[ARRAYS] = {
		&t->rotation,      &t->content_scale, &t->rope_angle,       &t->rope_scale,
		&t->content_mean,  &t->rope_mean,     &t->content_feedback, &t->content_weight,
		&t->rope_feedback, &t->rope_weight,   &t->cross_feedback,
	};
	const size_t sizes[ARRAYS] = {d_c * d_c, d_c, d_r / 2,   d_r / 2, d_c,      d_r,
				      d_c * d_c, d_c, d_r * d_r, d_r,     d_c * d_r};

	memcpy(arrays, all, sizeof(all));
	memcpy(counts, sizes, sizeof(sizes));
}

static void put(uint8_t **at, const void *data, size_t bytes)
{
	memcpy(*at, data, bytes);
	*at += bytes;
}

qmla_status_t qmw_layer_state_save(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				   const struct qmw_transform *transform,
				   const struct qmw_layer_figures *figures)
{
	struct header header = {.content_dim = transform->content_dim,
				.rope_dim = transform->rope_dim,
				.figures = sizeof(*figures)};
	struct qmw_transform copy = *transform;
	size_t bytes = sizeof(header) + sizeof(*figures) + QMC_SHA256_BYTES, counts[ARRAYS];
	double **arrays[ARRAYS];
	uint8_t *buffer, *at;
	qmla_status_t status;

	memcpy(header.magic, MAGIC, sizeof(header.magic));
	memcpy(header.tag, tag, QMC_SHA256_BYTES);
	list_arrays(&copy, arrays, counts);
	for (uint32_t i = 0; i < ARRAYS; i++) {
		if (!*arrays[i])
			continue;
		header.present |= 1u << i;
		bytes += counts[i] * sizeof(double);
	}
	buffer = at = malloc(bytes);
	if (!buffer)
		return QMLA_ERR_NO_MEMORY;
	put(&at, &header, sizeof(header));
	put(&at, figures, sizeof(*figures));
	for (uint32_t i = 0; i < ARRAYS; i++)
		if (*arrays[i])
			put(&at, *arrays[i], counts[i] * sizeof(double));
	status = qmc_sha256(buffer, bytes - QMC_SHA256_BYTES, at);
	if (status == QMLA_OK)
		status = qmw_disk_save(path, buffer, bytes);
	free(buffer);
	return status;
}

/* Takes the arrays out of @at, which is as long as the header says. */
static qmla_status_t take_arrays(const struct header *header, const uint8_t *at,
				 struct qmw_transform *transform)
{
	size_t counts[ARRAYS];
	double **arrays[ARRAYS];

	list_arrays(transform, arrays, counts);
	for (uint32_t i = 0; i < ARRAYS; i++) {
		if (!(header->present & 1u << i))
			continue;
		*arrays[i] = malloc(counts[i] * sizeof(double));
		if (!*arrays[i])
			return QMLA_ERR_NO_MEMORY;
		memcpy(*arrays[i], at, counts[i] * sizeof(double));
		at += counts[i] * sizeof(double);
	}
	return QMLA_OK;
}

/* True when @bytes is a whole, undamaged state of this tag. */
static bool is_sound(const uint8_t *data, size_t bytes, const uint8_t tag[QMC_SHA256_BYTES],
		     struct header *header)
{
	size_t wanted = sizeof(*header) + sizeof(struct qmw_layer_figures) + QMC_SHA256_BYTES;
	uint8_t digest[QMC_SHA256_BYTES];
	size_t counts[ARRAYS];
	double **arrays[ARRAYS];
	struct qmw_transform shape = {0};

	if (bytes < wanted)
		return false;
	memcpy(header, data, sizeof(*header));
	if (memcmp(header->magic, MAGIC, sizeof(header->magic)) != 0 ||
	    memcmp(header->tag, tag, QMC_SHA256_BYTES) != 0 ||
	    header->figures != sizeof(struct qmw_layer_figures))
		return false;
	shape.content_dim = header->content_dim;
	shape.rope_dim = header->rope_dim;
	list_arrays(&shape, arrays, counts);
	for (uint32_t i = 0; i < ARRAYS; i++)
		if (header->present & 1u << i)
			wanted += counts[i] * sizeof(double);
	return bytes == wanted && qmc_sha256(data, bytes - QMC_SHA256_BYTES, digest) == QMLA_OK &&
	       memcmp(digest, data + bytes - QMC_SHA256_BYTES, QMC_SHA256_BYTES) == 0;
}

qmla_status_t qmw_layer_state_load(const char *path, const uint8_t tag[QMC_SHA256_BYTES],
				   struct qmw_transform *transform,
				   struct qmw_layer_figures *figures)
{
	struct qmw_transform found = {0};
	struct header header;
	void *data;
	size_t bytes;
	qmla_status_t status;

	if (!qmw_file_exists(path))
		return QMLA_ERR_NOT_FOUND;
	status = qmw_file_read(path, LIMIT, &data, &bytes);
	if (status != QMLA_OK)
		return status;
	if (!is_sound(data, bytes, tag, &header)) {
		qmc_warn(COMPONENT, "%s is of another run or damaged: the layer is learned again",
			 path);
		free(data);
		return QMLA_ERR_CORRUPT;
	}
	found.content_dim = header.content_dim;
	found.rope_dim = header.rope_dim;
	memcpy(figures, (uint8_t *)data + sizeof(header), sizeof(*figures));
	status = take_arrays(&header, (uint8_t *)data + sizeof(header) + sizeof(*figures), &found);
	free(data);
	if (status == QMLA_OK)
		*transform = found;
	else
		qmw_transform_free(&found);
	return status;
}
