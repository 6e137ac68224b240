/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/fuse_checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/fuse_constants.h"
#include "client/calibrate/fuse_files.h"
#include "client/calibrate/fuse_tensor.h"
#include "client/model/constants.h"
#include "client/model/safetensors_write.h"
#include "common/log.h"

#define COMPONENT "fuse"
#define PIECE     ((uint64_t)4 << 20)
/* Constants, tokenizer and configuration beside the weights. */
#define OTHER_BYTES (UINT64_C(64) << 20)

struct fusion {
	const struct qmw_fuse_job *job;
	struct qmw_config config;
	struct qmw_rope rope;
	struct qmw_checkpoint *checkpoint;
	struct qmw_fuse_plan *plan;
	struct qmw_fuse_files *files;
	uint8_t *digests[2]; /**< of each weight file: before, fused */
	uint8_t *piece;      /**< [PIECE] */
	uint64_t done, total;
	struct qmw_fuse_report report;
};

static int compare_begin(const void *a, const void *b)
{
	const struct qmw_tensor *x = *(const struct qmw_tensor *const *)a;
	const struct qmw_tensor *y = *(const struct qmw_tensor *const *)b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

/* The file's tensors in the order of their data, malloc'ed. */
static const struct qmw_tensor **sort_tensors(const struct qmw_safetensors *file)
{
	uint32_t count = qmw_safetensors_count(file);
	const struct qmw_tensor **sorted = malloc((count + (size_t)1) * sizeof(*sorted));

	for (uint32_t i = 0; sorted && i < count; i++)
		sorted[i] = qmw_safetensors_at(file, i);
	if (sorted)
		qsort(sorted, count, sizeof(*sorted), compare_begin);
	return sorted;
}

static bool go_on(struct fusion *f, uint64_t bytes)
{
	f->done += bytes;
	return !f->job->progress || f->job->progress(f->job->user, f->done, f->total);
}

/* Reads the tensor's bytes through the hash of the source; writes them, or @p fused, when not NULL.
 */
static qmla_status_t put_tensor(struct fusion *f, const struct qmw_tensor *tensor,
				const uint8_t *fused, struct qmc_sha256 *source,
				struct qmw_safetensors_writer *writer)
{
	uint64_t bytes = tensor->end - tensor->begin;
	qmla_status_t status = QMLA_OK;

	for (uint64_t at = 0; at < bytes && !status; at += PIECE) {
		uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;

		status = qmw_tensor_read(tensor, at, n, f->piece);
		if (!status)
			status = qmc_sha256_update(source, f->piece, (size_t)n);
		if (!status)
			status = qmw_safetensors_append(writer, fused ? fused + at : f->piece,
							(size_t)n);
	}
	return status;
}

static void note_change(struct fusion *f, const struct qmw_tensor *tensor, double cast_error)
{
	f->report.changed++;
	if (cast_error < f->report.cast_error)
		return;
	f->report.cast_error = cast_error;
	strncpy(f->report.cast_worst, tensor->name, sizeof(f->report.cast_worst) - 1);
}

static qmla_status_t fuse_tensor(struct fusion *f, const char *path,
				 const struct qmw_tensor *tensor, struct qmc_sha256 *source,
				 struct qmw_safetensors_writer *writer)
{
	double cast_error;
	void *fused;
	qmla_status_t status = qmw_fuse_plan_replace(f->plan, path, tensor, &fused, &cast_error);

	if (status)
		return status;
	if (fused)
		note_change(f, tensor, cast_error);
	status = put_tensor(f, tensor, fused, source, writer);
	free(fused);
	if (!status && !go_on(f, tensor->end - tensor->begin))
		status = QMLA_ERR_CANCELLED;
	return status;
}

/* Bytes of a file before its data. */
static uint64_t header_bytes(const struct qmw_tensor *tensor)
{
	return tensor->offset - tensor->begin;
}

/* The header is the source's own: names, shapes, dtypes and offsets are the same. */
static qmla_status_t begin_file(struct fusion *f, const struct qmw_tensor *any, const char *path,
				struct qmc_sha256 *source, struct qmw_safetensors_writer **writer)
{
	uint64_t bytes = header_bytes(any);
	uint8_t *header = malloc((size_t)bytes + 1);
	const char *slash = strrchr(path, '/');
	char *to = qmw_fuse_files_path(f->files, slash ? slash + 1 : path);
	qmla_status_t status = header && to ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status)
		status = qmw_source_read(any->source, 0, bytes, header);
	if (!status)
		status = qmc_sha256_update(source, header, (size_t)bytes);
	if (!status)
		status = qmw_safetensors_write_like(to, header, (size_t)bytes,
						    qmw_source_length(any->source) - bytes, writer);
	free(header);
	free(to);
	return status;
}

static qmla_status_t fuse_file(struct fusion *f, uint32_t index, struct qmc_sha256 *source)
{
	const struct qmw_safetensors *file = qmw_checkpoint_file(f->checkpoint, index);
	const struct qmw_tensor **sorted = sort_tensors(file);
	const char *path = qmw_safetensors_path(file);
	struct qmw_safetensors_writer *writer = NULL;
	uint32_t count = qmw_safetensors_count(file);
	qmla_status_t status = sorted ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	if (!status && count == 0) {
		qmc_error(COMPONENT, "%s holds no tensors", path);
		status = QMLA_ERR_FORMAT;
	}
	if (!status)
		status = begin_file(f, sorted[0], path, source, &writer);
	for (uint32_t i = 0; i < count && !status; i++)
		status = fuse_tensor(f, path, sorted[i], source, writer);
	if (!status)
		status =
			qmc_sha256_finish(source, f->digests[0] + (size_t)index * QMC_SHA256_BYTES);
	if (!status)
		status = qmw_safetensors_finish(writer,
						f->digests[1] + (size_t)index * QMC_SHA256_BYTES);
	qmw_safetensors_writer_destroy(writer);
	free(sorted);
	return status;
}

static qmla_status_t fuse_files(struct fusion *f)
{
	uint32_t count = qmw_checkpoint_files(f->checkpoint);
	struct qmc_sha256 *source;
	qmla_status_t status = qmc_sha256_create(&source);

	if (status)
		return status;
	for (uint32_t i = 0; i < count && !status; i++)
		status = fuse_file(f, i, source);
	qmc_sha256_destroy(source);
	if (!status)
		status = qmc_sha256(f->digests[0], (size_t)count * QMC_SHA256_BYTES,
				    f->report.source_digest);
	if (!status)
		status = qmc_sha256(f->digests[1], (size_t)count * QMC_SHA256_BYTES,
				    f->report.digest);
	return status;
}

static qmla_status_t write_constants(struct fusion *f)
{
	const struct qmw_fuse_constants constants = {
		.job = f->job,
		.plan = f->plan,
		.config = &f->config,
		.report = &f->report,
	};
	struct qmw_constants readback;
	qmla_status_t status = qmw_fuse_constants_write(&constants, f->files);

	if (status)
		return status;
	/* What a worker will refuse is better refused here. */
	status = qmw_constants_open(qmw_fuse_files_directory(f->files), &f->config,
				    f->report.digest, false, &readback);
	if (!status)
		qmw_constants_close(&readback);
	return status;
}

static void count_bytes(struct fusion *f)
{
	for (uint32_t i = 0; i < qmw_checkpoint_files(f->checkpoint); i++) {
		const struct qmw_safetensors *file = qmw_checkpoint_file(f->checkpoint, i);
		uint64_t header = 0;

		for (uint32_t k = 0; k < qmw_safetensors_count(file); k++) {
			const struct qmw_tensor *tensor = qmw_safetensors_at(file, k);

			f->total += tensor->end - tensor->begin;
			header = header_bytes(tensor);
		}
		f->report.bytes += header;
	}
	f->report.bytes += f->total;
}

static qmla_status_t prepare(struct fusion *f)
{
	size_t digests;
	qmla_status_t status = qmw_config_read(f->job->source, &f->config);

	if (!status)
		status = qmw_checkpoint_open(f->job->source, &f->checkpoint);
	if (status)
		return status;
	qmw_rope_init(&f->config, &f->rope);
	count_bytes(f);
	digests = (size_t)qmw_checkpoint_files(f->checkpoint) * QMC_SHA256_BYTES;
	f->digests[0] = malloc(digests + 1);
	f->digests[1] = malloc(digests + 1);
	f->piece = malloc(PIECE);
	if (!f->digests[0] || !f->digests[1] || !f->piece)
		return QMLA_ERR_NO_MEMORY;
	status = qmw_fuse_plan_create(f->checkpoint, &f->config, &f->rope, f->job->layers,
				      f->job->count, &f->plan);
	return status ? status
		      : qmw_fuse_files_begin(f->job->output, f->report.bytes + OTHER_BYTES,
					     &f->files);
}

qmla_status_t qmw_fuse_checkpoint(const struct qmw_fuse_job *job, struct qmw_fuse_report *report)
{
	struct fusion f = {.job = job};
	qmla_status_t status = qmw_fuse_constants_check(job);

	if (!status)
		status = prepare(&f);
	if (!status)
		status = qmw_fuse_files_copy(f.files, job->source);
	if (!status)
		status = fuse_files(&f);
	if (!status)
		status = write_constants(&f);
	if (!status)
		status = qmw_fuse_files_commit(f.files);
	if (!status && report)
		*report = f.report;
	qmw_fuse_files_destroy(f.files);
	qmw_fuse_plan_destroy(f.plan);
	qmw_checkpoint_close(f.checkpoint);
	free(f.digests[0]);
	free(f.digests[1]);
	free(f.piece);
	return status;
}
