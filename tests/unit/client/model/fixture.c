/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client/model/fixture.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/model/checkpoint.h"
#include "client/model/config.h"
#include "client/model/file.h"

void fixture_make(char path[256])
{
	const char *base = getenv("TMPDIR");

	snprintf(path, 256, "%s/qmla-model-XXXXXX", base && base[0] ? base : "/tmp");
	assert_non_null(mkdtemp(path));
}

void fixture_remove(const char *path)
{
	DIR *directory = opendir(path);
	struct dirent *entry;

	while (directory && (entry = readdir(directory)))
		if (entry->d_name[0] != '.')
			fixture_delete(path, entry->d_name);
	if (directory)
		closedir(directory);
	rmdir(path);
}

void fixture_delete(const char *directory, const char *name)
{
	char *path = qmw_path_join(directory, name);

	assert_non_null(path);
	unlink(path);
	free(path);
}

void fixture_write(const char *directory, const char *name, const void *bytes, size_t length)
{
	char *path = qmw_path_join(directory, name);
	FILE *file;

	assert_non_null(path);
	file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, length, file), length);
	assert_int_equal(fclose(file), 0);
	free(path);
}

char *fixture_read(const char *directory, const char *name, size_t *length)
{
	char *path = qmw_path_join(directory, name);
	void *bytes;

	assert_non_null(path);
	assert_int_equal(qmw_file_read(path, SIZE_MAX, &bytes, length), QMLA_OK);
	free(path);
	return bytes;
}

void fixture_copy(const char *from, const char *to)
{
	DIR *directory = opendir(from);
	struct dirent *entry;

	assert_non_null(directory);
	while ((entry = readdir(directory))) {
		size_t length;
		char *bytes;

		if (strncmp(entry->d_name, "model", 5) != 0 &&
		    strcmp(entry->d_name, "config.json") != 0)
			continue;
		bytes = fixture_read(from, entry->d_name, &length);
		fixture_write(to, entry->d_name, bytes, length);
		free(bytes);
	}
	closedir(directory);
}

void fixture_write_tensors(const char *directory, const char *name, struct fixture_tensor *tensors,
			   size_t count)
{
	char *header = calloc(1, 16 + 256 * (count + 1));
	uint64_t offset = 0, length;
	char *path = qmw_path_join(directory, name);
	FILE *file = fopen(path, "wb");

	assert_non_null(file);
	strcpy(header, "{");
	for (size_t i = 0; i < count; i++) {
		uint64_t columns = tensors[i].rank == 2 ? tensors[i].shape[1] : 1;
		uint64_t bytes = tensors[i].shape[0] * columns * sizeof(float);
		char shape[64];

		if (tensors[i].rank == 2)
			snprintf(shape, sizeof(shape), "%" PRIu64 ",%" PRIu64, tensors[i].shape[0],
				 columns);
		else
			snprintf(shape, sizeof(shape), "%" PRIu64, tensors[i].shape[0]);
		sprintf(header + strlen(header),
			"%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%" PRIu64
			",%" PRIu64 "]}",
			i ? "," : "", tensors[i].name, shape, offset, offset + bytes);
		offset += bytes;
	}
	strcat(header, "}");
	length = strlen(header);
	assert_int_equal(fwrite(&length, 8, 1, file), 1);
	fwrite(header, 1, length, file);
	for (size_t i = 0; i < count; i++) {
		uint64_t columns = tensors[i].rank == 2 ? tensors[i].shape[1] : 1;

		fwrite(tensors[i].values, sizeof(float), tensors[i].shape[0] * columns, file);
		free(tensors[i].values);
	}
	assert_int_equal(fclose(file), 0);
	free(path);
	free(header);
}

static char *replace(const char *bytes, size_t length, const char *from, const char *to,
		     size_t *new_length)
{
	const char *at = memmem(bytes, length, from, strlen(from));
	size_t before, after;
	char *out;

	assert_non_null(at);
	before = (size_t)(at - bytes);
	after = length - before - strlen(from);
	out = malloc(before + strlen(to) + after + 1);
	memcpy(out, bytes, before);
	memcpy(out + before, to, strlen(to));
	memcpy(out + before + strlen(to), at + strlen(from), after);
	*new_length = before + strlen(to) + after;
	return out;
}

void fixture_replace(const char *directory, const char *name, const char *from, const char *to)
{
	size_t length, new_length;
	char *bytes = fixture_read(directory, name, &length);
	char *changed = replace(bytes, length, from, to, &new_length);

	fixture_write(directory, name, changed, new_length);
	free(bytes);
	free(changed);
}

void fixture_replace_header(const char *directory, const char *name, const char *from,
			    const char *to)
{
	size_t length, new_length;
	char *bytes = fixture_read(directory, name, &length);
	char *changed = replace(bytes, length, from, to, &new_length);
	uint64_t header;

	memcpy(&header, changed, 8);
	header += strlen(to);
	header -= strlen(from);
	memcpy(changed, &header, 8);
	fixture_write(directory, name, changed, new_length);
	free(bytes);
	free(changed);
}

float fixture_random(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (float)(*seed >> 40) / (float)(1 << 23) - 1;
}

static struct fixture_tensor *new_tensor(struct fixture_tensor *tensors, size_t *count,
					 uint32_t layer, const char *what, uint64_t rows,
					 uint64_t columns)
{
	struct fixture_tensor *t = &tensors[(*count)++];

	snprintf(t->name, sizeof(t->name), "layers.%u.%s", layer, what);
	t->rank = columns ? 2 : 1;
	t->shape[0] = rows;
	t->shape[1] = columns;
	t->values = calloc(rows * (columns ? columns : 1), sizeof(float));
	assert_non_null(t->values);
	return t;
}

/* I - 2 v v^T / (v^T v) of a random v: orthogonal, and mixes all coordinates. */
static void fill_reflection(float *matrix, uint64_t n, uint64_t *seed)
{
	double *v = malloc(n * sizeof(*v)), norm = 0;

	for (uint64_t i = 0; i < n; i++) {
		v[i] = fixture_random(seed);
		norm += v[i] * v[i];
	}
	for (uint64_t i = 0; i < n; i++)
		for (uint64_t j = 0; j < n; j++)
			matrix[i * n + j] = (float)((i == j) - 2 * v[i] * v[j] / norm);
	free(v);
}

static void fill_unit_lower(float *matrix, uint64_t n, float size, uint64_t *seed)
{
	for (uint64_t i = 0; i < n; i++) {
		for (uint64_t j = 0; j < i; j++)
			matrix[i * n + j] = size * fixture_random(seed);
		matrix[i * n + i] = 1;
	}
}

static void add_layer(struct fixture_tensor *tensors, size_t *count, uint32_t layer,
		      const struct qmw_config *c, const struct fixture_calibration *calibration,
		      uint64_t *seed)
{
	struct fixture_tensor *t;

	if (calibration->mean > 0) {
		t = new_tensor(tensors, count, layer, "content_mean", c->content_dim, 0);
		for (uint32_t i = 0; i < c->content_dim; i++)
			t->values[i] = calibration->mean * fixture_random(seed);
		t = new_tensor(tensors, count, layer, "rope_mean", c->rope_dim, 0);
		for (uint32_t i = 0; i < c->rope_dim; i++)
			t->values[i] = calibration->mean * fixture_random(seed);
	}
	if (calibration->feedback > 0) {
		t = new_tensor(tensors, count, layer, "content_feedback", c->content_dim,
			       c->content_dim);
		fill_unit_lower(t->values, c->content_dim, calibration->feedback, seed);
		t = new_tensor(tensors, count, layer, "content_weight", c->content_dim, 0);
		for (uint32_t i = 0; i < c->content_dim; i++)
			t->values[i] = 1.5f + fixture_random(seed);
	}
	if (calibration->rotation == QMW_ROTATION_MATRIX) {
		t = new_tensor(tensors, count, layer, "content_rotation", c->content_dim,
			       c->content_dim);
		fill_reflection(t->values, c->content_dim, seed);
	}
	if (calibration->rope_scale) {
		t = new_tensor(tensors, count, layer, "rope_scale", c->rope_dim / 2, 0);
		for (uint32_t i = 0; i < c->rope_dim / 2; i++)
			t->values[i] = exp2f(fixture_random(seed));
	}
}

void fixture_calibrate(const char *directory, const struct fixture_calibration *calibration)
{
	static const char *const names[] = {"identity", "hadamard", "matrix"};
	struct fixture_tensor *tensors = calloc(8 * QMK_MAX_LAYERS, sizeof(*tensors));
	uint8_t digest[QMC_SHA256_BYTES];
	struct qmw_checkpoint *checkpoint;
	struct qmw_config config;
	uint64_t seed = 7;
	size_t count = 0;
	char hex[65], json[512];

	assert_int_equal(qmw_config_read(directory, &config), QMLA_OK);
	assert_int_equal(qmw_checkpoint_open(directory, &checkpoint), QMLA_OK);
	assert_int_equal(qmw_checkpoint_digest(checkpoint, digest), QMLA_OK);
	qmw_checkpoint_close(checkpoint);
	qmc_hex_encode(digest, sizeof(digest), hex);
	for (uint32_t i = 0; i < config.layers; i++)
		add_layer(tensors, &count, i, &config, calibration, &seed);
	fixture_write_tensors(directory, "quantmla.safetensors", tensors, count);
	free(tensors);
	snprintf(json, sizeof(json),
		 "{\"version\": 1, \"recipe\": \"random\", \"content_rotation\": \"%s\", "
		 "\"model_sha256\": \"%s\"}",
		 names[calibration->rotation], hex);
	fixture_write(directory, "quantmla.json", json, strlen(json));
}
