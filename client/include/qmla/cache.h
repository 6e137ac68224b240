/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * libqmla: a client of the QuantMLA cache. It turns token ids into keys, finds
 * the longest prefix that the nodes hold, fetches its blocks into the caller's
 * memory, checks them, and publishes new ones.
 *
 * A block is 64 consecutive tokens, all layers: header and packed pages
 * (docs/format.md). All memory is the caller's unless said otherwise. Every
 * function that talks to a node takes a timeout in milliseconds that counts from
 * the call, and returns by then. A node that fails costs one bounded miss and is
 * then left out until a probe finds it well again.
 *
 * Threads: a client may be used from several threads at a time.
 */
#ifndef QMLA_CACHE_H
#define QMLA_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QMLA_BLOCK_TOKENS 64

typedef struct qmla_client qmla_client_t;
typedef struct qmla_watch qmla_watch_t;

typedef struct qmla_key {
	uint8_t bytes[16];
} qmla_key_t;

/** SHA-256 over model revision, layout and RoPE parameters: who may share blocks. */
typedef struct qmla_identity {
	uint8_t bytes[32];
} qmla_identity_t;

typedef enum qmla_format {
	QMLA_FORMAT_C4R4 = 1,
	QMLA_FORMAT_C2R4 = 2,
	QMLA_FORMAT_PAPER_C4R4 = 3,
} qmla_format_t;

typedef struct qmla_layout {
	qmla_format_t format;
	uint32_t layers;
	uint32_t content_dim; /**< kv_lora_rank */
	uint32_t rope_dim;    /**< qk_rope_head_dim */
} qmla_layout_t;

/** Bytes of one block, 0 for an impossible layout. Pure. */
uint64_t qmla_layout_block_bytes(const qmla_layout_t *layout);

/**
 * Keys of the full blocks of a sequence: key_i = first 16 bytes of
 * SHA-256(key_{i-1} as 32 bytes, then 64 token ids as little-endian u32);
 * key_{-1} = SHA-256("qmla-key-v1" 00, identity, namespace). Test vectors in docs/format.md.
 * @p keys holds token_count / 64 entries. @p name_space may be NULL (empty).
 */
qmla_status_t qmla_keys_compute(const qmla_identity_t *identity, const char *name_space,
				const uint32_t *tokens, size_t token_count, qmla_key_t *keys);

/** Where a key chain stands: key_{i-1} in full. A value type; copy it to fork a sequence. */
typedef struct qmla_key_chain {
	uint8_t state[32];
} qmla_key_chain_t;

/** Starts a chain: key_{-1}. @p name_space may be NULL (empty). */
qmla_status_t qmla_key_chain_start(const qmla_identity_t *identity, const char *name_space,
				   qmla_key_chain_t *chain);

/** Appends @p blocks full blocks (64 ids each): for sequences that grow. On an error @p chain
 * stays. */
qmla_status_t qmla_key_chain_extend(qmla_key_chain_t *chain, const uint32_t *tokens, size_t blocks,
				    qmla_key_t *keys);

/**
 * Zero-initialise, set what you need; zero means the default.
 *
 * A node is "[name=]host:port[*weight]". Placement hashes the name, or the
 * address as written when there is none: clients that share a cache must write
 * the list alike (its order does not matter). A weight is > 0, default 1.
 */
typedef struct qmla_client_config {
	size_t struct_size; /**< sizeof(qmla_client_config_t): ABI check */
	const char *nodes;  /**< "host:port,b=[::1]:7000*2,…", at most 256 */
	qmla_identity_t identity;
	qmla_layout_t layout;
	const char *transport;       /**< "auto" (NULL), "verbs", "shm", "tcp" */
	uint32_t replicas;           /**< copies written, default 1 */
	uint32_t connect_timeout_ms; /**< default 1000 */
	uint32_t call_timeout_ms;    /**< of one control call, default 2000 */
	uint32_t lease_ms;           /**< default 10000, renewed while a transfer lasts */
	uint32_t probe_interval_ms;  /**< how often a failed node is tried again, default 2000 */
	uint32_t connections;        /**< data connections to a node in one transfer; default: as
					suits the transport and the processors */
	/** Mutual TLS of the control plane: three PEM files, read by create, or none. */
	const char *tls_ca_file; /**< who signs the nodes */
	const char *tls_certificate_file;
	const char *tls_key_file;
} qmla_client_config_t;

/** Makes a client; connects on first use. Strings are copied. */
qmla_status_t qmla_client_create(const qmla_client_config_t *config, qmla_client_t **client);

/** Closes connections, frees. Accepts NULL. No call may be running; watches are closed before. */
void qmla_client_destroy(qmla_client_t *client);

/** Makes memory that blocks are fetched into or published from known to the transports. */
qmla_status_t qmla_client_register_memory(qmla_client_t *client, void *base, uint64_t bytes);

/**
 * Length of the longest run from the first key that the nodes hold, without
 * taking a lease. A hole ends the run. A node that fails counts as a miss.
 */
qmla_status_t qmla_client_lookup(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				 uint32_t timeout_ms, size_t *prefix);

/** Presence of each key by itself: @p statuses gets QMLA_OK, QMLA_ERR_NOT_FOUND or the node's
 * failure. */
qmla_status_t qmla_client_probe(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				uint32_t timeout_ms, qmla_status_t *statuses);

/** Figures of one fetch. */
typedef struct qmla_fetch_stats {
	uint64_t bytes; /**< fetched and verified */
	uint64_t lookup_us, transfer_us, verify_us;
	uint32_t nodes; /**< asked */
	uint32_t renewals;
	uint32_t corrupt; /**< blocks that failed verification and were reported */
} qmla_fetch_stats_t;

/**
 * Fetches the longest cached run from the first key: block i goes to
 * blocks[i] (block_bytes each, 128-byte aligned). @p prefix is the number of
 * leading blocks that are complete and verified (header, identity, key,
 * generation, every page's checksum); memory behind it may hold anything.
 * Returns QMLA_OK also for a miss or a failed node; only a caller's mistake or
 * no memory is an error. @p statuses (may be NULL) says of each block why it is
 * not there; QMLA_ERR_CANCELLED: it lies behind the end of the run. @p stats may
 * be NULL.
 */
qmla_status_t qmla_client_fetch(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				void *const *blocks, uint32_t timeout_ms, size_t *prefix,
				qmla_status_t *statuses, qmla_fetch_stats_t *stats);

/**
 * Publishes sealed blocks (generation 0 in the header; it is set on the way,
 * the caller's memory is not written). The keys are one chain, in order.
 * @p statuses (may be NULL) gets one a key: QMLA_OK, QMLA_ERR_ALREADY_EXISTS (as
 * good), QMLA_ERR_BUSY (another writer is at it: as good once that one commits),
 * QMLA_ERR_RESOURCE_EXHAUSTED, QMLA_ERR_UNAVAILABLE… A full node is asked again
 * as it says, a failed one is left for the next in rank; at the first key that
 * fails for good the rest is left out with the same status, since nobody finds a
 * block behind a hole. Returns that failure. Only headers are checked here; a
 * reader checks the pages.
 */
qmla_status_t qmla_client_publish(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				  const void *const *blocks, uint32_t timeout_ms,
				  qmla_status_t *statuses);

/**
 * Removes blocks from every node. @p statuses (may be NULL) gets one a key: QMLA_OK,
 * QMLA_ERR_NOT_FOUND, QMLA_ERR_BUSY (pinned), or why a node that may hold the key did not
 * do it. Returns the first failure other than QMLA_ERR_NOT_FOUND.
 */
qmla_status_t qmla_client_remove(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				 uint32_t timeout_ms, qmla_status_t *statuses);
/** Removes every block of this identity from every node. @p removed counts them. */
qmla_status_t qmla_client_clear(qmla_client_t *client, uint32_t timeout_ms, uint64_t *removed);

/** Pins end by themselves after @p ttl_ms (0: the node's default). */
qmla_status_t qmla_client_pin(qmla_client_t *client, const qmla_key_t *keys, size_t count,
			      const char *owner, uint32_t ttl_ms, uint32_t timeout_ms,
			      qmla_status_t *statuses);

/** Ends this owner's pins; a key's status is QMLA_ERR_NOT_FOUND where it has none. */
qmla_status_t qmla_client_unpin(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				const char *owner, uint32_t timeout_ms, qmla_status_t *statuses);

typedef struct qmla_node_status {
	char address[272];
	char node_id[64];
	char transport[16];
	qmla_status_t status; /**< QMLA_OK, or why it is left out */
	double weight;
	bool draining;
	uint64_t incarnation, uptime_ms;
	uint64_t capacity_bytes, used_bytes, blocks, leases, tickets, pins;
	uint64_t lookups, hits, commits, evictions, rejected_full, corrupt_reports;
	uint64_t bytes_read, bytes_written;
	char data_path[512]; /**< devices and memory behind the transports, "": nothing to say */
} qmla_node_status_t;

/** State of every configured node; @p count is in: room, out: nodes. Asks all at once. */
qmla_status_t qmla_client_status(qmla_client_t *client, uint32_t timeout_ms,
				 qmla_node_status_t *nodes, size_t *count);

typedef enum qmla_event_kind {
	QMLA_EVENT_INSERTED = 1,
	QMLA_EVENT_REMOVED = 2,
	QMLA_EVENT_SYNCED = 3, /**< the snapshot of one node is complete */
	QMLA_EVENT_LOST = 4,   /**< events of one node were lost: treat its keys as unknown */
} qmla_event_kind_t;

typedef struct qmla_event {
	qmla_event_kind_t kind;
	qmla_key_t key;
	char node[272];
} qmla_event_t;

/** Watches this identity's keys on every node; reconnects by itself (LOST, then a new snapshot). */
qmla_status_t qmla_watch_open(qmla_client_t *client, bool snapshot, qmla_watch_t **watch);
/** QMLA_ERR_DEADLINE when nothing came. One thread at a time. */
qmla_status_t qmla_watch_next(qmla_watch_t *watch, uint32_t timeout_ms, qmla_event_t *event);

/** Ends the watch and frees it; no other thread may be in qmla_watch_next. Accepts NULL. */
void qmla_watch_close(qmla_watch_t *watch); /**< accepts NULL */

/**
 * How much the library writes to standard error, one line an event: "error", "warn",
 * "info" (the default), "debug" or "trace". Of the whole process; any thread.
 * QMLA_ERR_INVALID_ARGUMENT: no such level.
 */
qmla_status_t qmla_log_set_level(const char *level);

/** "0.1.0" */
const char *qmla_version(void);

#ifdef __cplusplus
}
#endif

#endif /* QMLA_CACHE_H */
