/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store alone, without network: keys a second of lookup (with and without
 * lease) and of reserve plus commit, in batches of 1,024, in a pool that fits the
 * processor's caches and in one that does not. One JSON line a case with the
 * limit beside it; exit status 1 when one is below. Time is the thread's processor
 * time, so that a busy machine does not count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "server/store/store.h"

#define BATCH      1024u
#define KEYS       (UINT64_C(2) << 20) /* a case */
#define LOOKUP_MIN 5e6
#define WRITE_MIN  5e5

struct bench {
	struct qms_store *store;
	struct qms_identity identity;
	struct qms_key *keys;
	uint32_t slots;
};

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool report(const struct bench *bench, const char *what, double rate, double least)
{
	printf("{\"case\":\"store %s, %u slots\",\"keys_per_s\":%.0f,\"required\":%.0f}\n", what,
	       bench->slots, rate, least);
	fflush(stdout);
	return rate >= least;
}

static bool write_all(struct bench *bench)
{
	static struct qms_reserve_entry entries[BATCH];
	double begun = seconds();
	struct qms_grant grant;

	for (uint32_t at = 0; at + BATCH <= bench->slots; at += BATCH) {
		if (qms_store_reserve(bench->store, &bench->identity, bench->keys + at, BATCH, 0,
				      entries, &grant) != QMLA_OK)
			return false;
		for (uint32_t i = 0; i < BATCH; i++) {
			if (qms_store_commit(bench->store, entries[i].ticket, i) != QMLA_OK)
				return false;
		}
	}
	return report(bench, "reserve and commit", bench->slots / (seconds() - begun), WRITE_MIN);
}

static bool read_all(struct bench *bench, const char *what, int64_t lease_ns)
{
	static struct qms_lookup_entry entries[BATCH];
	double begun = seconds();
	struct qms_grant grant;
	uint32_t at = 0;

	for (uint64_t done = 0; done < KEYS; done += BATCH) {
		if (at + BATCH > bench->slots)
			at = 0;
		if (qms_store_lookup(bench->store, &bench->identity, bench->keys + at, BATCH,
				     lease_ns, true, entries, &grant) != QMLA_OK ||
		    entries[BATCH - 1].status != QMLA_OK)
			return false;
		if (grant.lease && qms_store_release(bench->store, grant.lease) != QMLA_OK)
			return false;
		at += BATCH;
	}
	return report(bench, what, (double)KEYS / (seconds() - begun), LOOKUP_MIN);
}

static bool setup(struct bench *bench, uint32_t slots)
{
	struct qms_store_config config = {.pool_bytes = (uint64_t)slots * 4096,
					  .max_identities = 1};
	struct qms_layout layout = {.block_bytes = 4096};
	struct qms_pool_info info;

	memset(bench, 0, sizeof(*bench));
	bench->slots = slots;
	bench->keys = calloc(slots, sizeof(*bench->keys));
	if (!bench->keys || qms_store_create(&config, &bench->store) != QMLA_OK)
		return false;
	for (uint32_t i = 0; i < slots; i++) {
		uint64_t spread[2] = {i * UINT64_C(0x9e3779b97f4a7c15), i};

		memcpy(bench->keys[i].bytes, spread, sizeof(spread));
	}
	return qms_store_open(bench->store, &bench->identity, &layout, &info) == QMLA_OK;
}

int main(void)
{
	static const uint32_t sizes[] = {8192, 1u << 20};
	bool good = true;

	qmc_log_configure(QMC_LOG_WARN, QMC_LOG_TEXT);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct bench bench;

		good = setup(&bench, sizes[i]) && write_all(&bench) &&
		       read_all(&bench, "lookup", 0) &&
		       read_all(&bench, "lookup with lease and release", QMC_NS_PER_S) && good;
		qms_store_destroy(bench.store);
		free(bench.keys);
	}
	return good ? 0 : 1;
}
