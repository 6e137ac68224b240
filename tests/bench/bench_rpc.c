/* SPDX-License-Identifier: Apache-2.0 */
/* Times the runtime on loopback; one JSON line a case, with the limit beside it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/clock.h"
#include "fixture.h"

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

static void report(const char *name, int64_t *ns, size_t count, double limit_us)
{
	qsort(ns, count, sizeof(*ns), compare);
	printf("{\"case\":\"%s\",\"calls\":%zu,\"median_us\":%.1f,\"p99_us\":%.1f,"
	       "\"limit_us\":%.0f}\n",
	       name, count, (double)ns[count / 2] / 1e3, (double)ns[count * 99 / 100] / 1e3,
	       limit_us);
}

static void bench_unary(struct fixture *fixture, const char *name, size_t keys, size_t calls,
			double limit_us)
{
	int64_t *ns = calloc(calls, sizeof(*ns));

	for (size_t i = 0; i < calls; i++) {
		qmc_time_t begin = qmc_clock_now();

		if (fixture_call(fixture->channel, "/test.Unary/Echo", keys, 16, 0, MS(5000), NULL,
				 NULL) != QMLA_OK)
			abort();
		ns[i] = qmc_clock_now() - begin;
	}
	report(name, ns, calls, limit_us);
	free(ns);
}

/* Packs and unpacks what a Lookup of 1,024 keys carries: protobuf work alone. */
static void bench_message(const ProtobufCMessage *message, const char *name)
{
	enum { ROUNDS = 500 };
	size_t size = protobuf_c_message_get_packed_size(message);
	uint8_t *bytes = malloc(size);
	int64_t pack[ROUNDS], unpack[ROUNDS];
	char text[64];

	for (int i = 0; i < ROUNDS; i++) {
		ProtobufCMessage *copy;
		qmc_time_t begin = qmc_clock_now(), middle;

		(void)protobuf_c_message_get_packed_size(message);
		protobuf_c_message_pack(message, bytes);
		middle = qmc_clock_now();
		if (qmp_message_unpack(message->descriptor, bytes, size, 16u << 20, &copy))
			abort();
		qmp_message_free(copy);
		pack[i] = middle - begin;
		unpack[i] = qmc_clock_now() - middle;
	}
	snprintf(text, sizeof(text), "pack %s (%zu B)", name, size);
	report(text, pack, ROUNDS, 250);
	snprintf(text, sizeof(text), "unpack %s", name);
	report(text, unpack, ROUNDS, 250);
	free(bytes);
}

static void bench_messages(void)
{
	enum { KEYS = 1024 };
	static uint8_t bytes[KEYS][16];
	static ProtobufCBinaryData keys[KEYS];
	static Qmla__V1__LookupEntry entries[KEYS], *list[KEYS];
	Qmla__V1__LookupRequest request;
	Qmla__V1__LookupResponse response;

	qmla__v1__lookup_request__init(&request);
	qmla__v1__lookup_response__init(&response);
	for (size_t i = 0; i < KEYS; i++) {
		keys[i] = (ProtobufCBinaryData){.len = 16, .data = bytes[i]};
		qmla__v1__lookup_entry__init(&entries[i]);
		entries[i].offset = i * 149504;
		entries[i].length = 149504;
		entries[i].generation = entries[i].digest = UINT64_MAX / (i + 1);
		list[i] = &entries[i];
	}
	request.n_keys = response.n_entries = KEYS;
	request.keys = keys;
	response.entries = list;
	bench_message(&request.base, "LookupRequest of 1024 keys");
	bench_message(&response.base, "LookupResponse of 1024 entries");
}

static double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void bench_idle(void)
{
	double before = cpu_seconds();

	qmc_clock_sleep_until(qmc_clock_after(10 * QMC_NS_PER_S));
	printf("{\"case\":\"idle, server and one channel, 10 s\",\"core_percent\":%.3f,"
	       "\"limit\":1}\n",
	       (cpu_seconds() - before) * 10);
}

static void bench_calls(struct fixture *fixture, const char *where)
{
	char name[64];

	bench_unary(fixture, "warm-up", 0, 200, 0);
	snprintf(name, sizeof(name), "unary call, %s", where);
	bench_unary(fixture, name, 0, 5000, 150);
	snprintf(name, sizeof(name), "1024 keys and entries, %s", where);
	bench_unary(fixture, name, 1024, 500, 1500);
}

/* bench_rpc [idle | PORT of a proto_peer] */
int main(int argc, char **argv)
{
	struct qmp_server_config config = {0};
	struct fixture fixture = {0};

	if (argc > 1 && atoi(argv[1]) > 0) {
		fixture.channel = fixture_connect((uint16_t)atoi(argv[1]));
		bench_calls(&fixture, "other process");
		qmp_channel_destroy(fixture.channel);
		return 0;
	}
	bench_messages();
	fixture_start(&fixture, &config);
	bench_calls(&fixture, "same process");
	if (argc > 1 && !strcmp(argv[1], "idle"))
		bench_idle();
	fixture_stop(&fixture, MS(1000));
	return 0;
}
