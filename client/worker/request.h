/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * One request inside a worker: its tokens, its cache state and where it stands.
 *
 * Life: init → the caller collects the prefix (slots, sequence) → submitted to
 * the scheduler → DONE → fini. The fields below say who may touch them when;
 * between submit and DONE everything but `shared` is the model thread's.
 */
#ifndef QMW_REQUEST_H
#define QMW_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>
#include <qmla/status.h>

#include "client/model/model.h"
#include "client/model/sample.h"
#include "client/worker/pool.h"
#include "common/clock.h"

enum qmw_request_state {
	QMW_REQUEST_PREPARING,  /**< the caller collects its prefix */
	QMW_REQUEST_WAITING,    /**< in the scheduler's queue */
	QMW_REQUEST_PREFILLING, /**< its prompt is being computed */
	QMW_REQUEST_DECODING,   /**< tokens come out */
	QMW_REQUEST_DONE,       /**< finish and status are final; the caller's again */
};

enum qmw_finish {
	QMW_FINISH_NONE,
	QMW_FINISH_LENGTH, /**< max_tokens reached, or the prompt computed when that is 0 */
	QMW_FINISH_EOS,
	QMW_FINISH_CANCELLED,
	QMW_FINISH_FAILED, /**< status says why */
};

struct qmw_request_config {
	const uint32_t *tokens; /**< prompt; copied */
	uint32_t token_count;   /**< >= 1 */
	uint32_t max_tokens;    /**< to generate; 0: compute the prompt only */
	struct qmw_sampler sampler;
	bool ignore_eos;
	bool shared_blocks;     /**< false: no keys, blocks are neither found nor published */
	const char *name_space; /**< salts the keys; copied; NULL: empty */
	qmla_identity_t identity;
	qmc_time_t deadline;
};

/** The part that both the caller and the model thread touch, under the mutex. */
struct qmw_request_shared {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	enum qmw_request_state state;
	enum qmw_finish finish;
	qmla_status_t status;
	uint32_t generated; /**< tokens[prompt …] that may be read */
	qmc_time_t started; /**< first step that had tokens of it */
	qmc_time_t first_token;
	qmc_time_t ended;
};

struct qmw_request {
	/* Fixed by init. */
	uint32_t prompt; /**< tokens of the prompt */
	uint32_t max_tokens;
	uint32_t block_limit; /**< blocks it can ever fill */
	bool ignore_eos;
	bool shared_blocks;
	char *name_space;
	qmla_identity_t identity;
	qmc_time_t deadline;

	/* The caller's, then the model thread's, then the caller's. */
	uint32_t *tokens; /**< [prompt + max_tokens] */
	uint32_t length;  /**< tokens known */
	qmla_key_t *keys; /**< [block_limit]; the prompt's full blocks by init, then one a block */
	uint32_t key_count;
	qmla_key_chain_t chain; /**< stands behind keys[key_count - 1] */
	uint32_t *slots;        /**< [block_limit], the first `blocks` are held */
	uint32_t blocks;
	struct qmw_pool_grant grant;
	struct qmw_sequence *sequence;
	struct qmw_sampler sampler;
	void *user; /**< the caller's, for the scheduler's block_done */
	struct qmw_request *next, *prev;

	_Atomic bool cancelled; /**< any thread sets it */
	struct qmw_request_shared shared;
};

/** Blocks a request of this size can ever fill: what it needs of the pool. */
uint32_t qmw_request_block_limit(uint32_t prompt, uint32_t max_tokens);

/** Prepares @p request (caller's storage), computes the keys of the prompt's full blocks. */
qmla_status_t qmw_request_init(struct qmw_request *request,
			       const struct qmw_request_config *config);

/** Drops its slots and the rest of its grant in @p pool, frees. PREPARING or DONE only. */
void qmw_request_fini(struct qmw_request *request, struct qmw_pool *pool);

/** Asks it to end early. Any thread, any time between init and fini. */
void qmw_request_cancel(struct qmw_request *request);

/** Key of block @p block, all of whose tokens are known; computed when it is not there yet, from
 * the last one that is. Model thread. */
qmla_status_t qmw_request_key(struct qmw_request *request, uint32_t block, qmla_key_t *key);

/** What the caller sees of a running request. */
struct qmw_request_view {
	enum qmw_request_state state;
	enum qmw_finish finish;
	qmla_status_t status;
	uint32_t generated;
	qmc_time_t started, first_token, ended;
};

/**
 * Waits until more than @p seen tokens are there or the request is DONE, or
 * @p deadline passes. The tokens are request->tokens[prompt + seen …].
 */
void qmw_request_wait(struct qmw_request *request, uint32_t seen, qmc_time_t deadline,
		      struct qmw_request_view *view);

/* The scheduler's side. */
void qmw_request_set_state(struct qmw_request *request, enum qmw_request_state state);
/** Appends a generated token and shows it. */
void qmw_request_append(struct qmw_request *request, uint32_t token);
/** Ends it; the scheduler must not touch the request any more. */
void qmw_request_finish(struct qmw_request *request, enum qmw_finish finish, qmla_status_t status);

const char *qmw_finish_name(enum qmw_finish finish); /**< "length", "eos"… */

#endif /* QMW_REQUEST_H */
