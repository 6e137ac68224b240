/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/analysis_tasks.h"

#include <math.h>
#include <stdlib.h>

#include "client/calibrate/analysis_error.h"

#define PROBE_BATCH 4u /* cotangents that share one softmax */

const double qmw_analysis_levels[QMW_ANALYSIS_LEVELS] = {1e-3, 3e-3, 1e-2, 3e-2, 1e-1};

/* A piece of the measurement that a thread takes. */
struct task {
	void (*run)(struct qmw_measured *p, const struct task *task);
	uint32_t a, b; /* path, and which error; or group */
	uint32_t units;
	uint32_t thread; /* that runs it */
};

struct tasks {
	struct qmw_measured *passage;
	struct task list[64];
	uint32_t count;
};

static void fail(struct qmw_measured *p, qmla_status_t status)
{
	qmla_status_t none = QMLA_OK;

	/* Relaxed: read after the team has joined, which orders it. */
	if (status != QMLA_OK)
		atomic_compare_exchange_strong_explicit(&p->status, &none, status,
							memory_order_relaxed, memory_order_relaxed);
}

/* An error in cache coordinates as a change of content or key rows: e / Gamma, or turned back. */
static void to_rows(const struct qmw_measured *p, enum qmw_path path, const float *error,
		    double factor, float *rows)
{
	size_t d_c = p->dim[QMW_PATH_CONTENT];

	for (size_t i = 0; i < qmw_measured_rows(p, path); i++)
		rows[i] = (float)(factor * (double)error[i]);
	if (path == QMW_PATH_ROPE) {
		qmw_passage_rotate(p->handle, true, rows);
		return;
	}
	/* A coordinate that Gamma switches off is always zero in the cache. */
	for (size_t i = 0; i < qmw_measured_rows(p, path); i++)
		rows[i] = p->gamma[i % d_c] != 0 ? rows[i] / p->gamma[i % d_c] : 0;
}

static void moved_rows(const struct qmw_measured *p, enum qmw_path path, const float *error,
		       double factor, float *rows)
{
	const float *own = path == QMW_PATH_CONTENT ? qmw_passage_content(p->handle)
						    : qmw_passage_key(p->handle);

	to_rows(p, path, error, factor, rows);
	for (size_t i = 0; i < qmw_measured_rows(p, path); i++)
		rows[i] += own[i];
}

static double output_change(const struct qmw_measured *p, const float *output)
{
	double sum = 0;

	for (size_t i = 0; i < (size_t)p->n * p->hidden; i++) {
		double d = (double)output[i] - (double)p->exact[i];

		sum += d * d;
	}
	return sum;
}

enum way { BOTH_WAYS, MATCHING, AGGREGATION };

/* ||Y(x + factor e) - Y||^2, a content error by one of its ways only if asked. */
static void change_by(struct qmw_measured *p, enum qmw_path path, const float *error, double factor,
		      enum way way, double *change)
{
	float *rows = malloc(qmw_measured_rows(p, path) * sizeof(*rows));
	float *output = malloc((size_t)p->n * p->hidden * sizeof(*output));
	struct qmw_rows moved = {0};
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (rows && output) {
		moved_rows(p, path, error, factor, rows);
		if (path == QMW_PATH_ROPE)
			moved.key = rows;
		else if (way != AGGREGATION)
			moved.content = rows;
		if (way == AGGREGATION)
			moved.value_content = rows;
		if (way == MATCHING)
			moved.value_content = qmw_passage_content(p->handle);
		status = qmw_passage_output(p->handle, &moved, output);
	}
	if (status == QMLA_OK)
		*change += output_change(p, output);
	fail(p, status);
	free(rows);
	free(output);
}

static void run_change(struct qmw_measured *p, const struct task *task)
{
	uint32_t path = task->a, shape = task->b;

	change_by(p, path, p->error[path][shape], 1, BOTH_WAYS,
		  &p->sums->path[path].shape[shape].change);
}

static void run_raw(struct qmw_measured *p, const struct task *task)
{
	uint32_t path = task->a, bits = task->b;

	change_by(p, path, p->raw[path][bits], 1, BOTH_WAYS, &p->sums->path[path].raw_change[bits]);
}

static void run_curve(struct qmw_measured *p, const struct task *task)
{
	uint32_t path = task->a, level = task->b;

	change_by(p, path, p->error[path][QMW_SHAPE_QUANTISER],
		  sqrt(qmw_analysis_levels[level] / p->setup->job->nmse), BOTH_WAYS,
		  &p->sums->path[path].curve[level]);
}

static void run_way(struct qmw_measured *p, const struct task *task)
{
	uint32_t path = task->a, way = task->b;

	change_by(p, path, p->error[path][QMW_SHAPE_QUANTISER], 1, (enum way)way,
		  way == MATCHING ? &p->sums->matching : &p->sums->aggregation);
}

static void run_linear(struct qmw_measured *p, const struct task *task)
{
	uint32_t path = task->a, shape = task->b;
	float *rows = malloc(qmw_measured_rows(p, path) * sizeof(*rows));
	float *output = malloc((size_t)p->n * p->hidden * sizeof(*output));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (rows && output) {
		to_rows(p, path, p->error[path][shape], 1, rows);
		status = qmw_passage_jvp(p->handle, NULL, path == QMW_PATH_CONTENT ? rows : NULL,
					 path == QMW_PATH_ROPE ? rows : NULL, output);
	}
	if (status == QMLA_OK)
		p->sums->path[path].shape[shape].linear +=
			qmw_sum_of_squares(output, (size_t)p->n * p->hidden);
	fail(p, status);
	free(rows);
	free(output);
}

/* Gradients to cache coordinates, squared, added: g_c = g_u / Gamma, g_K = R g_k / a^2. */
static void add_squares(const struct qmw_measured *p, float *content, float *key, double *diagonal)
{
	size_t d_c = p->dim[QMW_PATH_CONTENT], rows = qmw_measured_rows(p, QMW_PATH_CONTENT);
	double amplitude = (double)p->rope->amplitude * (double)p->rope->amplitude;

	for (size_t i = 0; i < rows; i++) {
		double g =
			p->gamma[i % d_c] != 0 ? (double)content[i] / (double)p->gamma[i % d_c] : 0;

		diagonal[i] += g * g;
	}
	qmw_passage_rotate(p->handle, false, key);
	for (size_t i = 0; i < qmw_measured_rows(p, QMW_PATH_ROPE); i++)
		diagonal[rows + i] += (double)key[i] * (double)key[i] / (amplitude * amplitude);
}

/* Counts @p units as done. Thread 0, the caller's, tells how far it is. False: the run ends. */
static bool go_on(struct qmw_measure_setup *setup, uint32_t thread, uint32_t units)
{
	/* Relaxed: a count and a flag, nothing is published with them. */
	uint64_t done =
		units + atomic_fetch_add_explicit(&setup->done, units, memory_order_relaxed);

	if (thread == 0 && units > 0 && setup->job->progress &&
	    !setup->job->progress(setup->job->user, done, setup->units))
		atomic_store_explicit(&setup->cancelled, true, memory_order_relaxed);
	return !atomic_load_explicit(&setup->cancelled, memory_order_relaxed);
}

static qmla_status_t probe_batch(struct qmw_measured *p, uint32_t group, uint32_t first,
				 uint32_t count, float *cotangent, float *content, float *key)
{
	size_t outputs = (size_t)p->n * p->hidden;
	qmla_status_t status;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t probe = (uint64_t)(first + i) * QMW_PROBE_GROUPS + group;
		struct qmw_random random;

		qmw_random_init(&random, p->setup->job->seed, QMW_PURPOSE_PROBE,
				p->stream << 24 | probe);
		qmw_random_signs(&random, cotangent + i * outputs, outputs);
	}
	status = qmw_passage_vjp(p->handle, NULL, count, cotangent, content, key);
	for (uint32_t i = 0; i < count && status == QMLA_OK; i++)
		add_squares(p, content + i * qmw_measured_rows(p, QMW_PATH_CONTENT),
			    key + i * qmw_measured_rows(p, QMW_PATH_ROPE), p->diagonal[group]);
	return status;
}

static void run_probes(struct qmw_measured *p, const struct task *task)
{
	uint32_t group = task->a, probes = qmw_group_probes(p->setup->job, group);
	float *cotangent = malloc(PROBE_BATCH * (size_t)p->n * p->hidden * sizeof(*cotangent));
	float *content =
		malloc(PROBE_BATCH * qmw_measured_rows(p, QMW_PATH_CONTENT) * sizeof(*content));
	float *key = malloc(PROBE_BATCH * qmw_measured_rows(p, QMW_PATH_ROPE) * sizeof(*key));
	qmla_status_t status = cotangent && content && key ? QMLA_OK : QMLA_ERR_NO_MEMORY;

	for (uint32_t first = 0; first < probes && status == QMLA_OK; first += PROBE_BATCH) {
		uint32_t count = probes - first < PROBE_BATCH ? probes - first : PROBE_BATCH;

		if (!go_on(p->setup, task->thread, 0))
			break;
		status = probe_batch(p, group, first, count, cotangent, content, key);
		go_on(p->setup, task->thread, count);
	}
	fail(p, status);
	free(cotangent);
	free(content);
	free(key);
}

/* Proposition 2: ||dY||^2 <= tau^2/4 sum_h ||C B_h||^2 sum_h ||mask dZ_h||^2. */
static void run_bound(struct qmw_measured *p, const struct task *task)
{
	uint32_t heads = task->a;
	double *norms = malloc(heads * sizeof(*norms)), change = 0, error = 0, energy, sum = 0;
	double tau = (double)p->rope->softmax_scale, bound;
	float *key = malloc(qmw_measured_rows(p, QMW_PATH_ROPE) * sizeof(*key));
	qmla_status_t status = QMLA_ERR_NO_MEMORY;

	if (norms && key) {
		moved_rows(p, QMW_PATH_ROPE, p->error[QMW_PATH_ROPE][QMW_SHAPE_QUANTISER], 1, key);
		status = qmw_passage_positional(p->handle, key, &error, &energy, NULL);
	}
	if (status == QMLA_OK)
		status = qmw_passage_value_norms(p->handle, NULL, norms);
	if (status == QMLA_OK) {
		for (uint32_t h = 0; h < heads; h++)
			sum += norms[h];
		bound = tau * tau / 4 * sum * error;
		change_by(p, QMW_PATH_ROPE, p->error[QMW_PATH_ROPE][QMW_SHAPE_QUANTISER], 1,
			  BOTH_WAYS, &change);
		p->sums->bound += bound;
		p->sums->bounded += change;
		p->sums->tightest = fmax(p->sums->tightest, bound > 0 ? change / bound : 0);
	}
	fail(p, status);
	free(norms);
	free(key);
}

static void add_task(struct tasks *tasks, void (*run)(struct qmw_measured *, const struct task *),
		     uint32_t a, uint32_t b, uint32_t units)
{
	tasks->list[tasks->count++] = (struct task){.run = run, .a = a, .b = b, .units = units};
}

/* Every task writes sums of its own; the long ones come first. */
static void list_tasks(struct tasks *tasks, uint32_t heads)
{
	for (uint32_t g = 0; g < QMW_PROBE_GROUPS; g++)
		add_task(tasks, run_probes, g, 0, 0);
	add_task(tasks, run_bound, heads, 0, 2);
	for (uint32_t path = 0; path < QMW_PATHS; path++) {
		for (uint32_t shape = 0; shape < QMW_SHAPES; shape++) {
			add_task(tasks, run_linear, path, shape, 1);
			add_task(tasks, run_change, path, shape, 1);
		}
		for (uint32_t level = 0; level < QMW_ANALYSIS_LEVELS; level++)
			add_task(tasks, run_curve, path, level, 1);
		for (uint32_t bits = 0; bits < QMW_RAW_BITS; bits++)
			add_task(tasks, run_raw, path, bits, 1);
	}
	add_task(tasks, run_way, QMW_PATH_CONTENT, MATCHING, 1);
	add_task(tasks, run_way, QMW_PATH_CONTENT, AGGREGATION, 1);
}

uint64_t qmw_measure_units(const struct qmw_analysis_job *job)
{
	struct tasks tasks = {0};
	uint64_t units = job->probes;

	list_tasks(&tasks, 1);
	for (uint32_t i = 0; i < tasks.count; i++)
		units += tasks.list[i].units;
	return units;
}

static void run_task(void *argument, uint32_t index, uint32_t thread)
{
	struct tasks *tasks = argument;
	struct task task = tasks->list[index];

	task.thread = thread;
	if (!go_on(tasks->passage->setup, thread, 0))
		return;
	task.run(tasks->passage, &task);
	go_on(tasks->passage->setup, thread, task.units);
}

void qmw_measured_run(struct qmw_measured *p, uint32_t heads)
{
	struct tasks tasks = {.passage = p};

	list_tasks(&tasks, heads);
	qmw_team_run(p->setup->team, tasks.count, run_task, &tasks);
}
