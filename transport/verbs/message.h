/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * What the two sides of the verbs back end tell each other: offer and answer over the
 * control plane, then messages of 80 bytes by SEND. Little-endian; docs/transport.md gives
 * them byte by byte. Decoders accept only what an encoder can have written
 * (QMLA_ERR_FORMAT). Any thread; never block.
 */
#ifndef QMT_VERBS_MESSAGE_H
#define QMT_VERBS_MESSAGE_H

#include "transport/blob.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/qp.h"

#define QMT_CONNECTION_BYTES 16
#define QMT_MESSAGE_BYTES    80
#define QMT_WINDOWS_MAX      4 /**< memory windows of one write: chunks that it may touch */

/** How bytes get into the region. */
enum qmt_write_mode {
	QMT_WRITE_WINDOW = 1, /**< the peer writes, through a window of its own for each write */
	QMT_WRITE_PULL = 2,   /**< the server reads them from the peer: it has no windows */
};

struct qmt_verbs_offer {
	struct qmt_identity server;               /**< whom it is for, with the cookie */
	uint8_t connection[QMT_CONNECTION_BYTES]; /**< random: the same offer again is known by it
						   */
	size_t rails;
	struct qmt_qp_address addresses[QMT_RAILS_MAX];
};

/** One rail of an answer. */
struct qmt_answer_rail {
	uint16_t offered; /**< index of the offer's rail that it is paired with */
	struct qmt_qp_address address;
	uint32_t rkeys[QMT_CHUNKS_MAX];
};

struct qmt_verbs_answer {
	uint64_t incarnation;
	uint8_t connection[QMT_CONNECTION_BYTES];
	uint64_t region, bytes, base;
	uint64_t chunk_bytes;
	size_t chunks;
	enum qmt_write_mode write_mode;
	uint16_t write_depth; /**< writes under way on a rail at a time */
	size_t rails;
	struct qmt_answer_rail rail[QMT_RAILS_MAX];
};

void qmt_verbs_offer_encode(const struct qmt_verbs_offer *offer, struct qmt_offer *blob);
qmla_status_t qmt_verbs_offer_decode(const struct qmt_offer *blob, struct qmt_verbs_offer *offer);

/** QMLA_ERR_TOO_LARGE: more chunks than fit. */
qmla_status_t qmt_verbs_answer_encode(const struct qmt_verbs_answer *answer,
				      struct qmt_offer *blob);
qmla_status_t qmt_verbs_answer_decode(const struct qmt_offer *blob,
				      struct qmt_verbs_answer *answer);

enum qmt_message_kind {
	QMT_MESSAGE_HELLO = 1, /**< peer: this rail works; id: first bytes of the connection */
	QMT_MESSAGE_WELCOME,   /**< server: so it does */
	QMT_MESSAGE_WRITE,     /**< peer: wants to write a range */
	QMT_MESSAGE_GRANT,     /**< server: write it with these rkeys */
	QMT_MESSAGE_DONE,      /**< peer: written, or given up (status) */
	QMT_MESSAGE_PULL,      /**< peer: fetch a range's bytes from address with rkeys[0] */
	QMT_MESSAGE_REPLY,     /**< server: how the write ended */
	QMT_MESSAGE_REPORT,    /**< peer: offset READs of length bytes since; server: heard */
	QMT_MESSAGE_BYE,       /**< either: the connection ends; peer: as REPORT too */
};

struct qmt_message {
	enum qmt_message_kind kind;
	qmla_status_t status;
	uint64_t id;
	uint64_t region, offset, length;
	uint8_t capability[QMT_CAPABILITY_BYTES];
	uint64_t address;
	uint32_t rkeys[QMT_WINDOWS_MAX];
};

void qmt_message_encode(const struct qmt_message *message, uint8_t out[QMT_MESSAGE_BYTES]);
/** @p bytes: received. */
qmla_status_t qmt_message_decode(const uint8_t *in, size_t bytes, struct qmt_message *message);

/** What HELLO carries. */
uint64_t qmt_connection_number(const uint8_t connection[QMT_CONNECTION_BYTES]);

#endif /* QMT_VERBS_MESSAGE_H */
