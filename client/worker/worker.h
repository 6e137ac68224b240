/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What a worker process is made of: the model, the pool, the scheduler, and the
 * way to the cache and to the prefill worker. The services (decode_service,
 * prefill_service, stats_service) work on it.
 */
#ifndef QMW_WORKER_H
#define QMW_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <qmla/cache.h>
#include <qmla/status.h>

#include "client/model/model.h"
#include "client/worker/flights.h"
#include "client/worker/pool.h"
#include "client/worker/prefill_client.h"
#include "client/worker/publisher.h"
#include "client/worker/request.h"
#include "client/worker/scheduler.h"
#include "common/clock.h"
#include "proto/rpc_client.h"

enum qmw_role { QMW_ROLE_PREFILL, QMW_ROLE_DECODE };

struct qmw_worker_config {
	enum qmw_role role;
	const char *model;         /**< directory of the checkpoint */
	enum qmk_format format;    /**< of the packed cache; 0: the model's choice */
	const char *nodes;         /**< "host:port[*weight],…"; NULL: no cache */
	const char *transport;     /**< NULL: auto */
	const char *prefill;       /**< address of the prefill worker; NULL: none */
	const char *name_space;    /**< of requests that name none; NULL: empty */
	const struct qmp_tls *tls; /**< of the way to nodes and prefill worker; NULL: plain text */
	bool ignore_calibration;   /**< run without quantmla.json */
	uint64_t pool_bytes;
	bool local_reuse; /**< blocks that no request holds are kept for later ones */
	uint32_t replicas;
	uint32_t max_batch;
	uint32_t max_waiting;
	uint32_t chunk;
	uint32_t threads;            /**< that compute; 0: one a processor */
	uint32_t prefill_min_blocks; /**< fewer missing blocks are computed here */
	int64_t fetch_timeout_ns;
	int64_t prefill_timeout_ns;
	int64_t queue_timeout_ns;   /**< longest wait for room in the pool */
	int64_t request_timeout_ns; /**< of a request whose client gave no deadline */
};

/** Counted over the life of the process. Relaxed atomics: figures, nothing hangs on them. */
struct qmw_worker_counters {
	_Atomic uint64_t requests, refused, failed, cancelled;
	_Atomic uint64_t blocks_hit_local, blocks_fetched, bytes_fetched;
	_Atomic uint64_t cache_errors, prefill_calls, prefill_errors;
};

struct qmw_worker {
	struct qmw_worker_config config; /**< strings are the caller's */
	struct qmw_model *model;
	qmla_identity_t identity;
	struct qmw_pool *pool;
	qmla_client_t *client;              /**< NULL: no nodes are configured */
	struct qmw_publisher *publisher;    /**< NULL: as above */
	struct qmw_prefill_client *prefill; /**< NULL: no prefill worker */
	struct qmw_flights *flights;
	struct qmw_scheduler *scheduler;
	_Atomic uint32_t inside; /**< requests being handled */
	_Atomic bool draining;
	struct qmw_worker_counters counters;
};

/**
 * Judges what can be judged before the model is loaded: the list of nodes, the TLS
 * files, config.json, the size of the pool. Blocks for a few small files. Logs what
 * is wrong: QMLA_ERR_INVALID_ARGUMENT, QMLA_ERR_NOT_FOUND, QMLA_ERR_FORMAT…
 */
qmla_status_t qmw_worker_check(const struct qmw_worker_config *config);

/** Loads the model and starts everything but the servers. Logs what fails. */
qmla_status_t qmw_worker_create(const struct qmw_worker_config *config, struct qmw_worker **worker);

/** Ends running requests, publishes what is queued until @p deadline, frees. Accepts NULL. No
 * handler may be running. */
void qmw_worker_destroy(struct qmw_worker *worker, qmc_time_t deadline);

/** Most requests that qmw_worker_enter lets in at a time. */
uint32_t qmw_worker_limit(const struct qmw_worker_config *config);

/**
 * Lets one more request in: QMLA_ERR_RESOURCE_EXHAUSTED over the limit,
 * QMLA_ERR_DRAINING when the process is about to end. Any thread.
 */
qmla_status_t qmw_worker_enter(struct qmw_worker *worker);
void qmw_worker_leave(struct qmw_worker *worker);

/** From now on every qmw_worker_enter is refused. Any thread. */
void qmw_worker_drain(struct qmw_worker *worker);

#define qmw_count(counter, amount)                                                                 \
	atomic_fetch_add_explicit(&(counter), (amount), memory_order_relaxed)

#endif /* QMW_WORKER_H */
