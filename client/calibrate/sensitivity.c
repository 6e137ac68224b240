/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/sensitivity.h"

#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/calibrate/random.h"
#include "common/log.h"

#define COMPONENT "calibrate"
/* Tokens of one product: short enough that float32 sums keep six digits. */
#define CHUNK 256u

/* One worker's sums over a sequence, in double. */
struct slot {
	double *mean_u, *mean_k, *moment_u, *moment_k, *h_u, *h_k, *h_x;
	double *all; /* the seven, one behind the other */
	float *product;
};

struct pass {
	const struct qmw_samples *samples;
	uint32_t probes;
	size_t count; /* numbers in a slot */
	struct slot *slots;
	double *sum; /* [count] */
};

static size_t slot_count(size_t d_c, size_t d_r)
{
	return d_c + d_r + 2 * d_c * d_c + 2 * d_r * d_r + d_c * d_r;
}

static void slot_place(double *all, size_t d_c, size_t d_r, struct slot *slot)
{
	slot->all = all;
	slot->mean_u = all;
	slot->mean_k = slot->mean_u + d_c;
	slot->moment_u = slot->mean_k + d_r;
	slot->moment_k = slot->moment_u + d_c * d_c;
	slot->h_u = slot->moment_k + d_r * d_r;
	slot->h_k = slot->h_u + d_c * d_c;
	slot->h_x = slot->h_k + d_r * d_r;
}

/* sum += rows^T rows */
static void add_gram(const float *rows, size_t n, uint32_t dim, float *product, double *sum)
{
	blasint d = (blasint)dim;

	for (size_t first = 0; first < n; first += CHUNK) {
		size_t now = n - first < CHUNK ? n - first : CHUNK;

		cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, d, (blasint)now, 1,
			    rows + first * dim, d, 0, product, d);
		for (uint32_t i = 0; i < dim; i++)
			for (uint32_t j = 0; j <= i; j++)
				sum[(size_t)i * dim + j] += product[(size_t)i * dim + j];
	}
}

/* sum += a^T b */
static void add_product(const float *a, uint32_t a_dim, const float *b, uint32_t b_dim, size_t n,
			float *product, double *sum)
{
	for (size_t first = 0; first < n; first += CHUNK) {
		size_t now = n - first < CHUNK ? n - first : CHUNK;

		cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)a_dim, (blasint)b_dim,
			    (blasint)now, 1, a + first * a_dim, (blasint)a_dim, b + first * b_dim,
			    (blasint)b_dim, 0, product, (blasint)b_dim);
		for (size_t i = 0; i < (size_t)a_dim * b_dim; i++)
			sum[i] += product[i];
	}
}

static void add_mean(const float *rows, size_t n, uint32_t dim, double *sum)
{
	for (size_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < dim; i++)
			sum[i] += rows[t * dim + i];
}

static qmla_status_t add_probes(const struct pass *pass, const struct qmw_sample *sample,
				const struct slot *slot)
{
	const struct qmw_config *config = pass->samples->config;
	size_t n = pass->samples->length;
	size_t outputs = pass->probes * n * config->hidden;
	size_t d_c = config->content_dim, d_r = config->rope_dim;
	float *probe = malloc(outputs * sizeof(*probe));
	float *u = malloc(pass->probes * n * d_c * sizeof(*u));
	float *k = malloc(pass->probes * n * d_r * sizeof(*k));
	qmla_status_t status = probe && u && k ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	struct qmw_random random;

	if (status == QMLA_OK) {
		qmw_random_init(&random, pass->samples->seed, QMW_PURPOSE_PROBE,
				(uint64_t)pass->samples->cache_layer << 32 | sample->index);
		qmw_random_signs(&random, probe, outputs);
		status = qmw_passage_vjp(sample->passage, NULL, pass->probes, probe, u, k);
	}
	if (status == QMLA_OK) {
		add_gram(u, pass->probes * n, config->content_dim, slot->product, slot->h_u);
		add_gram(k, pass->probes * n, config->rope_dim, slot->product, slot->h_k);
		add_product(u, config->content_dim, k, config->rope_dim, pass->probes * n,
			    slot->product, slot->h_x);
	}
	free(k);
	free(u);
	free(probe);
	return status;
}

static qmla_status_t measure(void *user, const struct qmw_sample *sample)
{
	const struct pass *pass = user;
	const struct qmw_config *config = pass->samples->config;
	const struct slot *slot = &pass->slots[sample->slot];
	const float *u = qmw_passage_content(sample->passage);
	const float *k = qmw_passage_key(sample->passage);
	size_t n = pass->samples->length;

	memset(slot->all, 0, pass->count * sizeof(double));
	add_mean(u, n, config->content_dim, slot->mean_u);
	add_mean(k, n, config->rope_dim, slot->mean_k);
	add_gram(u, n, config->content_dim, slot->product, slot->moment_u);
	add_gram(k, n, config->rope_dim, slot->product, slot->moment_k);
	return add_probes(pass, sample, slot);
}

static void take(void *user, uint32_t index, uint32_t slot)
{
	struct pass *pass = user;

	(void)index;
	for (size_t i = 0; i < pass->count; i++)
		pass->sum[i] += pass->slots[slot].all[i];
}

static void mirror(double *matrix, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = i + 1; j < n; j++)
			matrix[(size_t)i * n + j] = matrix[(size_t)j * n + i];
}

/* Sums to means; the lower triangles to whole matrices. */
static qmla_status_t finish(struct pass *pass, struct qmw_sensitivity *out)
{
	const struct qmw_samples *samples = pass->samples;
	uint32_t d_c = samples->config->content_dim, d_r = samples->config->rope_dim;
	double tokens = (double)samples->train * samples->length;
	struct slot sum;

	slot_place(pass->sum, d_c, d_r, &sum);
	for (size_t i = 0; i < pass->count; i++) {
		bool probed = pass->sum + i >= sum.h_u;

		pass->sum[i] /= probed ? tokens * pass->probes : tokens;
		if (!isfinite(pass->sum[i])) {
			qmc_error(COMPONENT,
				  "cache layer %" PRIu32
				  ": the sequences' latents or their gradients are not finite",
				  samples->cache_layer);
			return QMLA_ERR_CORRUPT;
		}
	}
	mirror(sum.moment_u, d_c);
	mirror(sum.moment_k, d_r);
	mirror(sum.h_u, d_c);
	mirror(sum.h_k, d_r);
	*out = (struct qmw_sensitivity){.content_dim = d_c,
					.rope_dim = d_r,
					.tokens = (uint64_t)tokens,
					.content_mean = sum.mean_u,
					.rope_mean = sum.mean_k,
					.content_moment = sum.moment_u,
					.rope_moment = sum.moment_k,
					.content = sum.h_u,
					.rope = sum.h_k,
					.cross = sum.h_x};
	return QMLA_OK;
}

static void free_slots(struct pass *pass, uint32_t slots)
{
	for (uint32_t i = 0; pass->slots && i < slots; i++) {
		free(pass->slots[i].all);
		free(pass->slots[i].product);
	}
	free(pass->slots);
}

static qmla_status_t make_slots(struct pass *pass, uint32_t slots)
{
	size_t d_c = pass->samples->config->content_dim, d_r = pass->samples->config->rope_dim;
	size_t widest = d_c > d_r ? d_c : d_r;

	pass->slots = calloc(slots, sizeof(*pass->slots));
	for (uint32_t i = 0; pass->slots && i < slots; i++) {
		struct slot *slot = &pass->slots[i];

		slot->all = malloc(pass->count * sizeof(double));
		slot->product = malloc(widest * widest * sizeof(float));
		if (!slot->all || !slot->product)
			return QMLA_ERR_NO_MEMORY;
		slot_place(slot->all, d_c, d_r, slot);
	}
	return pass->slots ? QMLA_OK : QMLA_ERR_NO_MEMORY;
}

qmla_status_t qmw_sensitivity_measure(const struct qmw_samples *samples, uint32_t probes,
				      struct qmw_sensitivity *sensitivity)
{
	struct pass pass = {
		.samples = samples,
		.probes = probes,
		.count = slot_count(samples->config->content_dim, samples->config->rope_dim)};
	uint32_t slots = qmw_samples_slots(samples);
	qmla_status_t status = make_slots(&pass, slots);

	pass.sum = calloc(pass.count, sizeof(double));
	if (status == QMLA_OK && !pass.sum)
		status = QMLA_ERR_NO_MEMORY;
	if (status == QMLA_OK)
		status = qmw_samples_range(samples, 0, samples->train, measure, take, &pass);
	if (status == QMLA_OK)
		status = finish(&pass, sensitivity);
	if (status != QMLA_OK)
		free(pass.sum);
	free_slots(&pass, slots);
	return status;
}

void qmw_sensitivity_free(struct qmw_sensitivity *sensitivity)
{
	free(sensitivity->content_mean); /* the front of the one allocation */
	memset(sensitivity, 0, sizeof(*sensitivity));
}
