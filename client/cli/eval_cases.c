/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/eval_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS_MAX 8u

/* A model that is open already serves every case that wants the same. */
struct opened {
	const char *directory;
	struct qmw_model_options options;
	struct qmw_model *model;
};

struct qmw_eval_cases {
	const char *program;
	const struct qmw_eval_request *request;
	enum qmw_quantiser quantiser;
	uint32_t models, count;
	struct opened opened[MODELS_MAX];
	struct qmw_eval_case cases[QMW_EVAL_CASES_MAX];
	struct qmw_eval_case reference;
	bool compared;
};

static qmla_status_t refuse(const struct qmw_eval_cases *self, const char *flag, const char *value,
			    const char *allowed)
{
	fprintf(stderr, "%s: %s: '%s' is none of %s\n", self->program, flag, value, allowed);
	return QMLA_ERR_INVALID_ARGUMENT;
}

static qmla_status_t open_model(struct qmw_eval_cases *self, const char *directory,
				const struct qmw_model_options *options,
				const struct qmw_model **model)
{
	struct opened *o = &self->opened[self->models];
	qmla_status_t status;

	for (uint32_t i = 0; i < self->models; i++) {
		const struct opened *other = &self->opened[i];

		if (strcmp(other->directory, directory) == 0 &&
		    other->options.cache == options->cache &&
		    other->options.format == options->format &&
		    other->options.round_bf16 == options->round_bf16) {
			*model = other->model;
			return QMLA_OK;
		}
	}
	if (self->models == MODELS_MAX) {
		fprintf(stderr, "%s: too many kinds of cache at once\n", self->program);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = qmw_model_open(directory, options, &o->model);
	if (status)
		return status;
	o->directory = directory;
	o->options = *options;
	self->models++;
	*model = o->model;
	return QMLA_OK;
}

static struct qmw_model_options make_options(const struct qmw_eval_cases *self, bool reference)
{
	const struct qmw_eval_request *r = self->request;

	return (struct qmw_model_options){
		.cache = QMW_CACHE_STUDY,
		.threads = r->threads,
		.ignore_calibration = r->ignore_calibration,
		.round_bf16 = !reference && r->arithmetic && strcmp(r->arithmetic, "bf16") == 0,
	};
}

/* "bf16" and "f32" are the study's with nothing quantised. */
static bool is_exact(const char *cache, struct qmw_study_settings *study)
{
	if (strcmp(cache, "bf16") != 0 && strcmp(cache, "f32") != 0)
		return false;
	*study = (struct qmw_study_settings){.exact = true, .float32 = cache[0] == 'f'};
	return true;
}

/* @p protect NULL: the packed cache. */
static qmla_status_t make_case(struct qmw_eval_cases *self, const char *directory, bool reference,
			       const char *cache, const char *protect, struct qmw_eval_case *c)
{
	struct qmw_model_options options = make_options(self, reference);
	bool exact = is_exact(cache, &c->study);

	snprintf(c->cache, sizeof(c->cache), "%s", cache);
	snprintf(c->protect, sizeof(c->protect), "%s", exact ? "-" : protect ? protect : "packed");
	c->quantiser = exact ? "-" : self->quantiser == QMW_QUANTISER_PAPER ? "paper" : "default";
	if (!exact && qmk_format_parse(cache, &c->study.format))
		return refuse(self, "--cache", cache, "c4r4, c2r4, paper-c4r4, bf16, f32");
	if (!exact && protect && qmw_protect_parse(protect, &c->study.protect))
		return refuse(self, "--protect", protect, "none, block, sink4+recent128");
	c->study.quantiser = self->quantiser;
	if (!exact && !protect) {
		options.cache = QMW_CACHE_PACKED;
		options.format = c->study.format;
		c->quantiser = strcmp(cache, "paper-c4r4") == 0 ? "paper" : "default";
	}
	c->reader.study = options.cache == QMW_CACHE_STUDY ? &c->study : NULL;
	return open_model(self, directory, &options, &c->reader.model);
}

static qmla_status_t add_case(struct qmw_eval_cases *self, const char *cache, const char *protect)
{
	if (self->count == QMW_EVAL_CASES_MAX) {
		fprintf(stderr, "%s: more than %u combinations\n", self->program,
			QMW_EVAL_CASES_MAX);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return make_case(self, self->request->model, false, cache, protect,
			 &self->cases[self->count++]);
}

/* One cache under every protection; an exact one once. */
static qmla_status_t add_cache(struct qmw_eval_cases *self, const char *cache)
{
	char *list = self->request->protects ? strdup(self->request->protects) : NULL, *rest = list;
	struct qmw_study_settings unused;
	qmla_status_t status = QMLA_OK;
	const char *protect;

	if (!list || is_exact(cache, &unused)) {
		free(list);
		return add_case(self, cache, NULL);
	}
	while (!status && (protect = strsep(&rest, ",")))
		status = add_case(self, cache, protect);
	free(list);
	return status;
}

static qmla_status_t add_caches(struct qmw_eval_cases *self, const char *caches)
{
	char *list = strdup(caches), *rest = list;
	qmla_status_t status = list ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	const char *cache;

	while (!status && (cache = strsep(&rest, ",")))
		status = add_cache(self, cache);
	free(list);
	return status;
}

/* What the checkpoint says of itself, where the request does not. */
static qmla_status_t choose_defaults(struct qmw_eval_cases *self, const char **caches)
{
	const struct qmw_eval_request *r = self->request;
	struct qmw_model_options options = make_options(self, false);
	const struct qmw_model *model;
	const struct qmw_model_info *info;
	qmla_status_t status;

	*caches = r->caches;
	if (r->caches && !r->protects)
		return QMLA_OK; /* a packed cache has its own quantiser */
	status = open_model(self, r->model, &options, &model);
	if (status)
		return status;
	info = qmw_model_info(model);
	self->quantiser = info->quantiser;
	if (r->quantiser)
		self->quantiser = strcmp(r->quantiser, "paper") == 0 ? QMW_QUANTISER_PAPER
								     : QMW_QUANTISER_DEFAULT;
	*caches = r->caches ? r->caches
			    : qmk_format_name(info->format ? info->format : QMK_FORMAT_C4R4);
	return QMLA_OK;
}

static qmla_status_t check(const struct qmw_eval_cases *self)
{
	const struct qmw_eval_request *r = self->request;

	if (r->quantiser && strcmp(r->quantiser, "paper") != 0 &&
	    strcmp(r->quantiser, "default") != 0)
		return refuse(self, "--quantiser", r->quantiser, "default, paper");
	if (r->arithmetic && strcmp(r->arithmetic, "f32") != 0 &&
	    strcmp(r->arithmetic, "bf16") != 0)
		return refuse(self, "--arithmetic", r->arithmetic, "f32, bf16");
	if (r->quantiser && !r->protects) {
		fprintf(stderr, "%s: --quantiser goes with --protect: a packed cache has its own\n",
			self->program);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (r->layers && !r->protects) {
		fprintf(stderr, "%s: --layers goes with --protect\n", self->program);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

static qmla_status_t fill(struct qmw_eval_cases *self)
{
	const struct qmw_eval_request *r = self->request;
	const char *caches;
	qmla_status_t status = check(self);

	if (!status)
		status = choose_defaults(self, &caches);
	if (!status)
		status = add_caches(self, caches);
	if (status || strcmp(r->against, "none") == 0)
		return status;
	self->compared = true;
	return make_case(self, r->reference ? r->reference : r->model, true, r->against, NULL,
			 &self->reference);
}

qmla_status_t qmw_eval_cases_open(const char *program, const struct qmw_eval_request *request,
				  struct qmw_eval_cases **cases)
{
	struct qmw_eval_cases *self = calloc(1, sizeof(*self));
	qmla_status_t status;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->program = program;
	self->request = request;
	status = fill(self);
	if (status) {
		qmw_eval_cases_close(self);
		return status;
	}
	*cases = self;
	return QMLA_OK;
}

void qmw_eval_cases_close(struct qmw_eval_cases *cases)
{
	if (!cases)
		return;
	for (uint32_t i = 0; i < cases->models; i++)
		qmw_model_close(cases->opened[i].model);
	free(cases);
}

uint32_t qmw_eval_cases_count(const struct qmw_eval_cases *cases)
{
	return cases->count;
}

const struct qmw_eval_case *qmw_eval_cases_at(const struct qmw_eval_cases *cases, uint32_t index)
{
	return &cases->cases[index];
}

const struct qmw_eval_case *qmw_eval_cases_reference(const struct qmw_eval_cases *cases)
{
	return cases->compared ? &cases->reference : NULL;
}

const char *qmw_eval_cases_arithmetic(const struct qmw_eval_cases *cases)
{
	return cases->request->arithmetic;
}
