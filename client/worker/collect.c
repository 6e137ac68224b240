/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/collect.h"

#include "client/worker/prefill_client.h"
#include "client/worker/prefix.h"
#include "common/log.h"

#define COMPONENT "decode"

/* How soon the prefill worker's answer is seen … */
#define POLL_NS (1 * QMC_NS_PER_MS)
/* … and how often the nodes are asked meanwhile: each question takes time from those who compute.
 */
#define ASK_NS (20 * QMC_NS_PER_MS)
/* No new block for so long: is the prefill worker alive at all? */
#define SILENCE_NS       (500 * QMC_NS_PER_MS)
#define HEALTH_WITHIN_NS (500 * QMC_NS_PER_MS)

/* One prefill on its way. */
struct prefill {
	struct qmw_worker *worker;
	struct qmw_request *request;
	uint32_t limit;
	struct qmw_prefill_call *call;
	qmc_time_t deadline;
	qmc_time_t ask_at;      /* when the nodes are asked next */
	qmc_time_t quiet_since; /* last new block, or last sign of life */
	bool cache_failed;      /* what it makes can no longer reach us */
	bool unwanted;          /* the client is gone */
	struct qmw_collected *collected;
	struct qmw_notes *notes;
};

/* Is it the cache that is unwell? A block that is not there, or is bad (-60 … -79), is a miss. */
static bool is_failure(qmla_status_t end)
{
	return end != QMLA_OK && end != QMLA_ERR_NOT_FOUND && end != QMLA_ERR_BUSY &&
	       (end > QMLA_ERR_LEASE_EXPIRED || end <= QMLA_ERR_INTERNAL);
}

static void note_fetch(struct qmw_worker *worker, const struct qmw_prefix_result *result,
		       struct qmw_notes *notes)
{
	if (result->corrupt > 0)
		qmw_notes_add(notes, "%u cached block(s) failed their checksum and were dropped",
			      result->corrupt);
	if (!is_failure(result->end))
		return;
	qmw_notes_add(notes, "cache %s: %s; the rest of the prompt is computed here",
		      worker->config.nodes, qmla_status_text(result->end));
	qmc_warn_limited(COMPONENT, "cache %s: %s; computing without it", worker->config.nodes,
			 qmla_status_text(result->end));
}

static void fetch_more(struct prefill *p)
{
	struct qmw_prefix_result result;

	qmw_prefix_fetch(p->worker, p->request, p->limit, &result);
	p->collected->prefilled += result.fetched;
	p->collected->bytes += result.bytes;
	if (result.fetched > 0)
		p->quiet_since = qmc_clock_now();
	note_fetch(p->worker, &result, p->notes);
	p->cache_failed = is_failure(result.end);
	p->ask_at = qmc_clock_after(ASK_NS);
}

/* Nothing came for a while: a busy prefill worker answers a health check, a dead one does not. */
static bool still_alive(struct prefill *p)
{
	if (qmc_clock_now() - p->quiet_since < SILENCE_NS)
		return true;
	if (qmw_prefill_call_check(p->call, HEALTH_WITHIN_NS) != QMLA_OK)
		return false;
	p->quiet_since = qmc_clock_now();
	return true;
}

/* Fetches blocks as they appear; true when the call has ended by itself. */
static bool follow(struct prefill *p, bool (*cancelled)(void *user), void *user)
{
	while (!qmw_prefill_call_done(p->call)) {
		p->unwanted = cancelled(user);
		if (p->unwanted || qmc_clock_left(p->deadline) == 0 || !still_alive(p))
			return false;
		if (qmc_clock_left(p->ask_at) == 0)
			fetch_more(p);
		if (p->cache_failed)
			return false;
		qmc_clock_sleep_until(qmc_clock_after(POLL_NS));
	}
	return true;
}

static void settle(struct prefill *p, bool ended)
{
	const char *address = qmw_prefill_client_address(p->worker->prefill);
	struct qmw_prefill_reply reply;
	qmla_status_t status = qmw_prefill_call_end(p->call, !ended, &reply);

	if (ended && status == QMLA_OK) {
		fetch_more(p);
		if (reply.note[0])
			qmw_notes_add(p->notes, "prefill worker %s: %s", address, reply.note);
		return;
	}
	if (p->cache_failed || p->unwanted)
		return; /* the first has been noted, the second needs no note */
	qmw_count(p->worker->counters.prefill_errors, 1);
	qmw_notes_add(p->notes, "prefill worker %s: %s; the rest of the prompt is computed here",
		      address, ended ? reply.note : "no answer in time");
}

static void ask_prefill(struct prefill *p, bool (*cancelled)(void *user), void *user)
{
	struct qmw_worker *worker = p->worker;
	qmc_time_t start = qmc_clock_now();
	qmla_status_t status;

	p->deadline = qmc_clock_after(worker->config.prefill_timeout_ns);
	if (p->request->deadline < p->deadline)
		p->deadline = p->request->deadline;
	p->quiet_since = start;
	p->ask_at = qmc_clock_after(ASK_NS);
	qmw_count(worker->counters.prefill_calls, 1);
	status = qmw_prefill_call_start(worker->prefill, p->request->tokens,
					p->limit * QMLA_BLOCK_TOKENS, p->request->name_space,
					p->deadline, &p->call);
	if (status != QMLA_OK) {
		qmw_notes_add(p->notes, "prefill worker %s: %s",
			      qmw_prefill_client_address(worker->prefill),
			      qmla_status_text(status));
		return;
	}
	settle(p, follow(p, cancelled, user));
	p->collected->prefill_us = (uint64_t)((qmc_clock_now() - start) / QMC_NS_PER_US);
}

/* A prefill is worth asking for when its blocks can come back and are many. */
static bool wants_prefill(const struct qmw_worker *worker, const struct qmw_request *request,
			  uint32_t limit, qmla_status_t end)
{
	return worker->prefill && worker->client && request->shared_blocks && !is_failure(end) &&
	       limit - request->blocks >= worker->config.prefill_min_blocks;
}

static void add_fetched(struct qmw_collected *collected, const struct qmw_prefix_result *result)
{
	collected->fetched += result->fetched;
	collected->bytes += result->bytes;
	collected->fetch_us += result->us;
}

/* Where much is missing: another request may be at it already. */
static qmla_status_t share(struct prefill *p, qmla_status_t end, bool (*cancelled)(void *user),
			   void *user)
{
	struct qmw_prefix_result result = {.end = end};
	uint32_t found;

	if (p->limit - p->request->blocks < p->worker->config.prefill_min_blocks)
		return end;
	qmw_prefix_share(p->worker, p->request, p->limit, p->request->deadline, cancelled, user,
			 &p->collected->flight, &found, &result);
	p->collected->local += found;
	add_fetched(p->collected, &result);
	note_fetch(p->worker, &result, p->notes);
	return result.end;
}

void qmw_collect(struct qmw_worker *worker, struct qmw_request *request, uint32_t limit,
		 bool (*cancelled)(void *user), void *user, struct qmw_collected *collected,
		 struct qmw_notes *notes)
{
	struct qmw_prefix_result result;
	struct prefill prefill = {.worker = worker,
				  .request = request,
				  .limit = limit,
				  .collected = collected,
				  .notes = notes};
	qmla_status_t end;

	collected->local = request->blocks;
	qmw_prefix_fetch(worker, request, limit, &result);
	add_fetched(collected, &result);
	note_fetch(worker, &result, notes);
	end = share(&prefill, result.end, cancelled, user);
	if (!wants_prefill(worker, request, limit, end))
		return;
	if (qmw_prefill_client_usable(worker->prefill))
		ask_prefill(&prefill, cancelled, user);
	else
		qmw_notes_add(notes, "prefill worker %s is left out; the prompt is computed here",
			      qmw_prefill_client_address(worker->prefill));
}
