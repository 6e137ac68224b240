/* SPDX-License-Identifier: Apache-2.0 */
/** @file Asks a worker for text and keeps all of the answer. Any thread, one at a time a struct. */
#ifndef WORKER_ASK_H
#define WORKER_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "common/clock.h"
#include "proto/rpc_client.h"
#include "qmla/v1/worker.pb-c.h"

#define ANSWER_TOKENS 4096
#define ANSWER_NOTES  2048

struct ask {
	const char *address;
	const uint8_t *prompt;
	uint32_t prompt_bytes;
	uint32_t max_tokens;
	bool no_cache;
	const char *name_space; /**< NULL: none */
	float temperature;
	uint64_t seed;
	int64_t timeout_ns;        /**< 0: 240 s */
	uint32_t cancel_after;     /**< tokens; then the stream is cancelled; 0: never */
	const struct qmp_tls *tls; /**< NULL: plain text */
};

struct answer {
	qmla_status_t status;
	char detail[512];
	uint32_t tokens[ANSWER_TOKENS];
	uint32_t count;
	bool has_usage;
	Qmla__V1__Usage usage; /**< numbers only: its pointers are not to be followed */
	char finish[32];
	char notes[ANSWER_NOTES]; /**< one a line */
	qmc_time_t took;
};

/** Blocks until the stream ends. */
void ask_worker(const struct ask *ask, struct answer *answer);

/** True when both generated the same tokens (at least one). */
bool same_text(const struct answer *a, const struct answer *b);

/** Figures of a worker; pointers in it are not to be followed. */
qmla_status_t ask_stats(const char *address, Qmla__V1__WorkerStatsResponse *stats);

#endif /* WORKER_ASK_H */
