/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The two opaque blobs that the control plane carries: the address of a server
 * and the handle of one of its regions. docs/transport.md gives them byte by
 * byte. All functions: any thread, never block, never log.
 */
#ifndef QMT_BLOB_H
#define QMT_BLOB_H

#include "transport/transport.h"

#define QMT_COOKIE_BYTES     16
#define QMT_ADDRESS_TEXT_MAX 384 /**< terminator included */

/** Back end that wrote a blob; the values travel. */
enum qmt_kind { QMT_KIND_TCP = 1, QMT_KIND_SHM = 2, QMT_KIND_VERBS = 3 };

/** One life of one server: what its addresses and handles are tied to. */
struct qmt_identity {
	enum qmt_kind kind;
	uint64_t incarnation;             /**< random, not secret: in every handle */
	uint8_t cookie[QMT_COOKIE_BYTES]; /**< random and secret: only in the address */
};

/** A decoded handle. */
struct qmt_remote_region {
	enum qmt_kind kind;
	uint64_t incarnation;
	uint64_t region;
	uint64_t bytes;
};

/** Draws a fresh identity. QMLA_ERR_INTERNAL when the kernel gives no randomness. */
qmla_status_t qmt_identity_create(enum qmt_kind kind, struct qmt_identity *identity);

/** Writes the address of a server reached at @p text. QMLA_ERR_TOO_LARGE: the text. */
qmla_status_t qmt_address_encode(const struct qmt_identity *identity, const char *text,
				 struct qmt_server_address *address);

/**
 * Reads an address made by back end @p kind. QMLA_ERR_FORMAT: not an address;
 * QMLA_ERR_UNSUPPORTED: another back end's or a newer format.
 */
qmla_status_t qmt_address_decode(const struct qmt_server_address *address, enum qmt_kind kind,
				 struct qmt_identity *identity, char text[QMT_ADDRESS_TEXT_MAX]);

/** Writes the handle of region number @p region of @p bytes bytes. */
void qmt_handle_encode(const struct qmt_identity *identity, uint64_t region, uint64_t bytes,
		       struct qmt_handle *handle);

/** Reads a handle. Statuses as qmt_address_decode. */
qmla_status_t qmt_handle_decode(const struct qmt_handle *handle, struct qmt_remote_region *region);

/**
 * Checks that @p op may be posted to the server @p identity: arguments set,
 * 1 ≤ length ≤ @p max_length, handle of this server, range inside its region.
 * @p region receives the decoded handle. QMLA_ERR_PEER_RESTARTED: the handle is
 * of another life of the server.
 */
qmla_status_t qmt_op_check(const struct qmt_op *op, const struct qmt_identity *identity,
			   uint64_t max_length, struct qmt_remote_region *region);

#endif /* QMT_BLOB_H */
