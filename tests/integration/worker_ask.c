/* SPDX-License-Identifier: Apache-2.0 */
#include "worker_ask.h"

#include <stdio.h>
#include <string.h>

#include "proto/rpc_client.h"

static void take(const Qmla__V1__GenerateEvent *event, struct answer *answer)
{
	for (size_t i = 0; i < event->n_tokens && answer->count < ANSWER_TOKENS; i++)
		answer->tokens[answer->count++] = event->tokens[i];
	if (!event->usage)
		return;
	answer->has_usage = true;
	answer->usage = *event->usage;
	snprintf(answer->finish, sizeof(answer->finish), "%s", event->usage->finish);
	for (size_t i = 0; i < event->usage->n_notes; i++) {
		size_t used = strlen(answer->notes);

		snprintf(answer->notes + used, sizeof(answer->notes) - used, "%s\n",
			 event->usage->notes[i]);
	}
}

static void read_stream(const struct ask *ask, struct qmp_stream *stream, struct answer *answer)
{
	struct qmp_error error = {.detail = ""};

	for (;;) {
		ProtobufCMessage *message = NULL;

		answer->status = qmp_stream_next(stream, QMC_TIME_NEVER, &message, &error);
		if (answer->status != QMLA_OK || !message)
			break;
		take((const Qmla__V1__GenerateEvent *)message, answer);
		qmp_message_free(message);
		if (ask->cancel_after > 0 && answer->count >= ask->cancel_after)
			qmp_stream_cancel(stream);
	}
	snprintf(answer->detail, sizeof(answer->detail), "%s", error.detail);
}

void ask_worker(const struct ask *ask, struct answer *answer)
{
	struct qmp_channel_config config = {.target = ask->address, .tls = ask->tls};
	Qmla__V1__GenerateRequest request;
	struct qmp_channel *channel;
	struct qmp_stream *stream;
	qmc_time_t start = qmc_clock_now();

	memset(answer, 0, sizeof(*answer));
	answer->status = qmp_channel_create(&config, &channel);
	if (answer->status != QMLA_OK)
		return;
	qmla__v1__generate_request__init(&request);
	request.prompt.data = (uint8_t *)(uintptr_t)ask->prompt;
	request.prompt.len = ask->prompt_bytes;
	request.max_tokens = ask->max_tokens;
	request.no_cache = ask->no_cache;
	request.ignore_eos = true;
	request.temperature = ask->temperature;
	request.seed = ask->seed;
	if (ask->name_space)
		request.cache_namespace = (char *)(uintptr_t)ask->name_space;
	answer->status = qmp_stream_open(
		channel, "/qmla.v1.Worker/Generate", &request.base,
		&qmla__v1__generate_event__descriptor,
		qmc_clock_after(ask->timeout_ns ? ask->timeout_ns : 240 * QMC_NS_PER_S), &stream);
	if (answer->status == QMLA_OK) {
		read_stream(ask, stream, answer);
		qmp_stream_close(stream);
	}
	qmp_channel_destroy(channel);
	answer->took = qmc_clock_now() - start;
}

bool same_text(const struct answer *a, const struct answer *b)
{
	return a->count > 0 && a->count == b->count &&
	       memcmp(a->tokens, b->tokens, a->count * sizeof(a->tokens[0])) == 0;
}

qmla_status_t ask_stats(const char *address, Qmla__V1__WorkerStatsResponse *stats)
{
	struct qmp_channel_config config = {.target = address};
	Qmla__V1__WorkerStatsRequest request;
	struct qmp_channel *channel;
	ProtobufCMessage *message = NULL;
	qmla_status_t status = qmp_channel_create(&config, &channel);

	if (status != QMLA_OK)
		return status;
	qmla__v1__worker_stats_request__init(&request);
	status = qmp_channel_call(channel, "/qmla.v1.Worker/WorkerStats", &request.base,
				  &qmla__v1__worker_stats_response__descriptor,
				  qmc_clock_after(5 * QMC_NS_PER_S), &message, NULL);
	if (status == QMLA_OK)
		*stats = *(const Qmla__V1__WorkerStatsResponse *)message;
	qmp_message_free(message);
	qmp_channel_destroy(channel);
	return status;
}
