/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/request.h"

#include <stdlib.h>
#include <string.h>

static void shared_init(struct qmw_request_shared *shared)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&shared->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&shared->changed, &attr);
	pthread_condattr_destroy(&attr);
}

uint32_t qmw_request_block_limit(uint32_t prompt, uint32_t max_tokens)
{
	/* The last token that is sampled is never fed back, so it fills no block. */
	uint32_t fed = prompt + (max_tokens > 0 ? max_tokens - 1 : 0);

	return fed / QMLA_BLOCK_TOKENS;
}

static qmla_status_t request_allocate(struct qmw_request *r,
				      const struct qmw_request_config *config)
{
	size_t total = (size_t)r->prompt + r->max_tokens;
	size_t blocks = (size_t)r->block_limit + 1;

	r->tokens = malloc(total * sizeof(*r->tokens));
	r->keys = malloc(blocks * sizeof(*r->keys));
	r->slots = malloc(blocks * sizeof(*r->slots));
	r->name_space = strdup(config->name_space ? config->name_space : "");
	if (!r->tokens || !r->keys || !r->slots || !r->name_space)
		return QMLA_ERR_NO_MEMORY;
	memcpy(r->tokens, config->tokens, r->prompt * sizeof(*r->tokens));
	return QMLA_OK;
}

static void request_free(struct qmw_request *r)
{
	free(r->tokens);
	free(r->keys);
	free(r->slots);
	free(r->name_space);
}

/* Keys up to and with block @p blocks - 1. */
static qmla_status_t keys_extend(struct qmw_request *r, uint32_t blocks)
{
	qmla_status_t status = qmla_key_chain_extend(
		&r->chain, r->tokens + (size_t)r->key_count * QMLA_BLOCK_TOKENS,
		blocks - r->key_count, r->keys + r->key_count);

	if (status == QMLA_OK)
		r->key_count = blocks;
	return status;
}

static qmla_status_t keys_start(struct qmw_request *r)
{
	qmla_status_t status = qmla_key_chain_start(&r->identity, r->name_space, &r->chain);

	if (status != QMLA_OK || r->prompt < QMLA_BLOCK_TOKENS)
		return status;
	return keys_extend(r, r->prompt / QMLA_BLOCK_TOKENS);
}

qmla_status_t qmw_request_init(struct qmw_request *request, const struct qmw_request_config *config)
{
	qmla_status_t status;

	memset(request, 0, sizeof(*request));
	request->prompt = config->token_count;
	request->max_tokens = config->max_tokens;
	request->block_limit = qmw_request_block_limit(config->token_count, config->max_tokens);
	request->ignore_eos = config->ignore_eos;
	request->shared_blocks = config->shared_blocks;
	request->identity = config->identity;
	request->deadline = config->deadline;
	request->sampler = config->sampler;
	request->length = config->token_count;
	status = request_allocate(request, config);
	if (status == QMLA_OK && config->shared_blocks)
		status = keys_start(request);
	if (status != QMLA_OK) {
		request_free(request);
		return status;
	}
	shared_init(&request->shared);
	return QMLA_OK;
}

void qmw_request_fini(struct qmw_request *request, struct qmw_pool *pool)
{
	qmw_pool_drop_all(pool, request->slots, request->blocks);
	qmw_pool_forgo(pool, &request->grant);
	qmw_sequence_destroy(request->sequence);
	pthread_cond_destroy(&request->shared.changed);
	pthread_mutex_destroy(&request->shared.mutex);
	request_free(request);
}

void qmw_request_cancel(struct qmw_request *request)
{
	/* Relaxed: a flag that is polled; nothing is read on the strength of it. */
	atomic_store_explicit(&request->cancelled, true, memory_order_relaxed);
}

qmla_status_t qmw_request_key(struct qmw_request *request, uint32_t block, qmla_key_t *key)
{
	qmla_status_t status =
		block < request->key_count ? QMLA_OK : keys_extend(request, block + 1);

	if (status != QMLA_OK)
		return status;
	*key = request->keys[block];
	return QMLA_OK;
}

void qmw_request_wait(struct qmw_request *request, uint32_t seen, qmc_time_t deadline,
		      struct qmw_request_view *view)
{
	struct qmw_request_shared *shared = &request->shared;
	struct timespec ts = {.tv_sec = deadline / QMC_NS_PER_S,
			      .tv_nsec = deadline % QMC_NS_PER_S};
	int rc = 0;

	pthread_mutex_lock(&shared->mutex);
	while (shared->generated <= seen && shared->state != QMW_REQUEST_DONE && rc == 0)
		rc = pthread_cond_timedwait(&shared->changed, &shared->mutex, &ts);
	*view = (struct qmw_request_view){
		.state = shared->state,
		.finish = shared->finish,
		.status = shared->status,
		.generated = shared->generated,
		.started = shared->started,
		.first_token = shared->first_token,
		.ended = shared->ended,
	};
	pthread_mutex_unlock(&shared->mutex);
}

void qmw_request_set_state(struct qmw_request *request, enum qmw_request_state state)
{
	pthread_mutex_lock(&request->shared.mutex);
	request->shared.state = state;
	if (state == QMW_REQUEST_PREFILLING)
		request->shared.started = qmc_clock_now();
	pthread_mutex_unlock(&request->shared.mutex);
}

void qmw_request_append(struct qmw_request *request, uint32_t token)
{
	struct qmw_request_shared *shared = &request->shared;

	pthread_mutex_lock(&shared->mutex);
	request->tokens[request->length++] = token;
	if (shared->generated++ == 0)
		shared->first_token = qmc_clock_now();
	pthread_cond_signal(&shared->changed);
	pthread_mutex_unlock(&shared->mutex);
}

void qmw_request_finish(struct qmw_request *request, enum qmw_finish finish, qmla_status_t status)
{
	struct qmw_request_shared *shared = &request->shared;

	pthread_mutex_lock(&shared->mutex);
	shared->state = QMW_REQUEST_DONE;
	shared->finish = finish;
	shared->status = status;
	shared->ended = qmc_clock_now();
	/* Under the mutex: once it is released the caller may free the request. */
	pthread_cond_signal(&shared->changed);
	pthread_mutex_unlock(&shared->mutex);
}

const char *qmw_finish_name(enum qmw_finish finish)
{
	switch (finish) {
	case QMW_FINISH_LENGTH:
		return "length";
	case QMW_FINISH_EOS:
		return "eos";
	case QMW_FINISH_CANCELLED:
		return "cancelled";
	case QMW_FINISH_FAILED:
		return "failed";
	case QMW_FINISH_NONE:
		break;
	}
	return "";
}
