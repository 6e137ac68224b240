/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/ngram.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/model/attention_weights.h"
#include "client/model/numeric.h"

#define PREFIX "model.ngram_embeddings."

static uint64_t table_rows(const struct qmw_config *config, uint32_t table)
{
	return (uint64_t)(config->ngram.ratio * config->vocab + 2.0 * table + 1);
}

static void name_of(const char *what, uint32_t table, char name[QMW_TENSOR_NAME_BYTES])
{
	snprintf(name, QMW_TENSOR_NAME_BYTES, PREFIX "%s.%" PRIu32 ".weight", what, table);
}

qmla_status_t qmw_ngram_check(const struct qmw_checkpoint *checkpoint,
			      const struct qmw_config *config)
{
	uint32_t tables = qmw_config_ngram_tables(config);
	qmla_status_t status = QMLA_OK;
	char name[QMW_TENSOR_NAME_BYTES];

	for (uint32_t i = 0; i < tables && !status; i++) {
		name_of("embedders", i, name);
		status = qmw_checkpoint_check(checkpoint, name, table_rows(config, i),
					      config->hidden / tables);
		name_of("post_projs", i, name);
		if (!status)
			status = qmw_checkpoint_check(checkpoint, name, config->hidden,
						      config->hidden / tables);
	}
	return status;
}

static qmla_status_t read_projection(struct qmw_ngram *ngram, uint32_t hidden, uint32_t table)
{
	char name[QMW_TENSOR_NAME_BYTES];
	float *weights;
	qmla_status_t status;

	name_of("post_projs", table, name);
	status = qmw_checkpoint_read(ngram->checkpoint, name, hidden, ngram->width, &weights);
	if (status)
		return status;
	status = qmw_matrix_init(&ngram->projection[table], hidden, ngram->width, weights,
				 ngram->width, NULL);
	free(weights);
	return status;
}

qmla_status_t qmw_ngram_read(const struct qmw_checkpoint *checkpoint,
			     const struct qmw_config *config, uint64_t *parameters,
			     struct qmw_ngram *ngram)
{
	struct qmw_ngram self = {.tables = qmw_config_ngram_tables(config),
				 .checkpoint = checkpoint};
	qmla_status_t status = qmw_ngram_check(checkpoint, config);

	if (status || !self.tables) {
		*ngram = (struct qmw_ngram){0};
		return status;
	}
	self.width = config->hidden / self.tables;
	self.projection = calloc(self.tables, sizeof(*self.projection));
	if (!self.projection)
		return QMLA_ERR_NO_MEMORY;
	for (uint32_t i = 0; i < self.tables && !status; i++) {
		status = read_projection(&self, config->hidden, i);
		*parameters += (table_rows(config, i) + config->hidden) * self.width;
	}
	if (status) {
		qmw_ngram_free(&self);
		return status;
	}
	*ngram = self;
	return QMLA_OK;
}

void qmw_ngram_free(struct qmw_ngram *ngram)
{
	for (uint32_t i = 0; ngram->projection && i < ngram->tables; i++)
		qmw_matrix_fini(&ngram->projection[i]);
	free(ngram->projection);
	*ngram = (struct qmw_ngram){0};
}

/* How many of @recent belong to the text that the token is in: an end token ends the one before. */
static uint32_t same_text(const struct qmw_config *config, const uint32_t *recent, uint32_t count)
{
	uint32_t n = 1;

	while (n < count && n < config->ngram.neighbours && (int64_t)recent[n] != config->eos)
		n++;
	return n;
}

void qmw_ngram_ids(const struct qmw_config *config, const uint32_t *recent, uint32_t count,
		   uint64_t *ids)
{
	uint32_t text = same_text(config, recent, count);

	for (uint32_t i = 0; i < qmw_config_ngram_tables(config); i++) {
		uint32_t n = 2 + i / config->ngram.splits;
		uint64_t rows = table_rows(config, i), power = 1, sum = recent[0];

		/* Below 2^24 · 2^34 each: eight of them fit 64 bits. */
		for (uint32_t d = 1; d < n && d < text; d++) {
			power = power * config->vocab % rows;
			sum += recent[d] * power;
		}
		ids[i] = sum % rows;
	}
}

/* hidden += P table[ids] of one table. */
static qmla_status_t add_table(const struct qmw_ngram *ngram, const struct qmw_config *config,
			       uint32_t table, const uint64_t *ids, uint32_t count, bool round,
			       float *rows, float *sum, float *hidden)
{
	const struct qmw_matrix *projection = &ngram->projection[table];
	uint64_t table_count = table_rows(config, table);
	qmla_status_t status = QMLA_OK;
	char name[QMW_TENSOR_NAME_BYTES];

	name_of("embedders", table, name);
	for (uint32_t r = 0; r < count && !status; r++)
		status = qmw_checkpoint_read_rows(ngram->checkpoint, name, table_count,
						  ngram->width, ids[r * ngram->tables + table], 1,
						  rows + (size_t)r * ngram->width);
	if (status)
		return status;
	qmw_matrix_apply(projection, 0, projection->panels, rows, ngram->width, count, sum,
			 config->hidden);
	qmw_round_rows(round, sum, (size_t)count * config->hidden);
	qmw_add_weighted(sum, 1, count * config->hidden, round, hidden);
	return QMLA_OK;
}

qmla_status_t qmw_ngram_add(const struct qmw_ngram *ngram, const struct qmw_config *config,
			    const uint64_t *ids, uint32_t count, bool round, float *rows,
			    float *sum, float *hidden)
{
	float parts = (float)(1 + ngram->tables);
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; i < ngram->tables && !status; i++)
		status = add_table(ngram, config, i, ids, count, round, rows, sum, hidden);
	for (size_t i = 0; i < (size_t)count * config->hidden; i++)
		hidden[i] /= parts;
	qmw_round_rows(round, hidden, (size_t)count * config->hidden);
	return status;
}
