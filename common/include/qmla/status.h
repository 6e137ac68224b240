/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The one status enum of the project. Zero is success; errors are negative and
 * grouped by what they harm, so that a caller can decide by range:
 *
 *   -1  … -19   the caller's mistake        (do not repeat the call unchanged)
 *   -20 … -39   a resource of this process or of the peer (try again later)
 *   -40 … -59   the peer or the connection  (rebuild it, or go elsewhere)
 *   -60 … -79   the data                    (a miss: recompute)
 *   -80 … -99   a defect                    (report it)
 *
 * The numeric values travel in the cache protocol and are part of the ABI:
 * they never change and are never reused.
 */
#ifndef QMLA_STATUS_H
#define QMLA_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum qmla_status {
	QMLA_OK = 0,

	/* The caller's mistake. */
	QMLA_ERR_INVALID_ARGUMENT = -1, /**< a value, shape or size is out of its range */
	QMLA_ERR_NOT_FOUND = -2,        /**< no such key, file, tensor or object */
	QMLA_ERR_ALREADY_EXISTS =
		-3,              /**< the key is there already (a writer treats it as success) */
	QMLA_ERR_TOO_LARGE = -4, /**< over a stated limit: message, batch, prompt, block */
	QMLA_ERR_IDENTITY_MISMATCH = -5, /**< other weights, constants or RoPE parameters */
	QMLA_ERR_LAYOUT_MISMATCH = -6,   /**< other page format or geometry */
	QMLA_ERR_PERMISSION = -7,        /**< capability, ticket or credentials do not allow it */
	QMLA_ERR_UNSUPPORTED = -8,       /**< known, but not offered by this build or device */
	QMLA_ERR_FORMAT = -9,            /**< malformed file or message */

	/* A resource. */
	QMLA_ERR_NO_MEMORY = -20,          /**< memory could not be allocated or locked */
	QMLA_ERR_RESOURCE_EXHAUSTED = -21, /**< pool, table or quota is full: try again later */
	QMLA_ERR_BUSY = -22,               /**< in use: address, key being written, pinned slot */
	QMLA_ERR_IO = -23,                 /**< a read or write of a file or device failed */
	QMLA_ERR_NO_SPACE = -24,           /**< disk full or read-only */

	/* The peer or the connection. */
	QMLA_ERR_UNAVAILABLE = -40,    /**< the peer cannot be reached or went away */
	QMLA_ERR_DEADLINE = -41,       /**< the deadline passed first */
	QMLA_ERR_CANCELLED = -42,      /**< cancelled by this side */
	QMLA_ERR_PEER_RESTARTED = -43, /**< the handle belongs to another life of the node */
	QMLA_ERR_DRAINING = -44,       /**< the node is leaving and takes no new work */

	/* The data. */
	QMLA_ERR_LEASE_EXPIRED =
		-60,            /**< the right to read or write ended before the transfer did */
	QMLA_ERR_STALE = -61,   /**< the slot holds another generation or another key */
	QMLA_ERR_CORRUPT = -62, /**< a checksum does not match */

	/* A defect. */
	QMLA_ERR_INTERNAL = -80, /**< broken invariant or unexpected foreign error */
} qmla_status_t;

/**
 * Stable lower-case name of @p status, e.g. "lease_expired"; "unknown" for a
 * value outside the enum. Static storage; any thread; never blocks.
 */
const char *qmla_status_name(qmla_status_t status);

/** One sentence for a person, without a full stop. Static storage; any thread. */
const char *qmla_status_text(qmla_status_t status);

#ifdef __cplusplus
}
#endif

#endif /* QMLA_STATUS_H */
