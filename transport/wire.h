/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Messages of the tcp and shm back ends: fixed size, little-endian. Over TCP a
 * write's bytes follow its request and a read's follow its reply; over a Unix
 * socket one packet holds several messages and the bytes move through shared
 * memory. docs/transport.md gives each message byte by byte.
 *
 * Decoders accept only what an encoder can have written: unknown kinds, unknown
 * statuses, values out of range and reserved bytes that are not zero give
 * QMLA_ERR_FORMAT, after which the connection is dropped. Any thread; never block.
 */
#ifndef QMT_WIRE_H
#define QMT_WIRE_H

#include "transport/blob.h"

#define QMT_WIRE_VERSION       1
#define QMT_WIRE_HELLO_BYTES   48
#define QMT_WIRE_WELCOME_BYTES 32
#define QMT_WIRE_REQUEST_BYTES 64
#define QMT_WIRE_REPLY_BYTES   32

#define QMT_LENGTH_MAX (UINT64_C(1) << 30) /**< bytes of one operation */

/** First message, from the client. */
struct qmt_wire_hello {
	uint16_t version_min, version_max; /**< what the client speaks */
	uint64_t incarnation;
	uint8_t cookie[QMT_COOKIE_BYTES];
};

/** The server's answer; it closes the connection after any status but QMLA_OK. */
struct qmt_wire_welcome {
	uint16_t version; /**< the one that is spoken from here on */
	qmla_status_t status;
	uint64_t incarnation;
	uint64_t max_length; /**< of one operation */
};

enum qmt_wire_kind {
	QMT_WIRE_READ = QMT_READ,
	QMT_WIRE_WRITE = QMT_WRITE,
	QMT_WIRE_DONE = 3,  /**< shm: the reader has copied, or gave up */
	QMT_WIRE_STAGE = 4, /**< shm: a staging memfd of `length` bytes comes with this packet */
};

struct qmt_wire_request {
	enum qmt_wire_kind kind;
	uint64_t id;
	uint64_t region;
	uint64_t offset;
	uint64_t length;
	uint8_t capability[QMT_CAPABILITY_BYTES];
	uint64_t staging;     /**< shm WRITE: where in the staging memfd the bytes are */
	qmla_status_t status; /**< DONE only: how the copy ended */
};

/** Replies come in the order of the requests. */
struct qmt_wire_reply {
	enum qmt_wire_kind kind; /**< of the request */
	uint64_t id;
	qmla_status_t status;
	uint64_t length;       /**< of the request when status is QMLA_OK, else zero */
	uint64_t region_bytes; /**< shm READ: a region memfd of this size comes along; else zero */
};

/** Writes the message's bytes. */
void qmt_wire_hello_encode(const struct qmt_wire_hello *hello, uint8_t out[QMT_WIRE_HELLO_BYTES]);

/** Reads a hello. QMLA_ERR_FORMAT, also for another magic or an empty range of versions. */
qmla_status_t qmt_wire_hello_decode(const uint8_t in[QMT_WIRE_HELLO_BYTES],
				    struct qmt_wire_hello *hello);

/** Writes the message's bytes. */
void qmt_wire_welcome_encode(const struct qmt_wire_welcome *welcome,
			     uint8_t out[QMT_WIRE_WELCOME_BYTES]);

/** Reads a welcome. QMLA_ERR_FORMAT. */
qmla_status_t qmt_wire_welcome_decode(const uint8_t in[QMT_WIRE_WELCOME_BYTES],
				      struct qmt_wire_welcome *welcome);

/** Writes the message's bytes. */
void qmt_wire_request_encode(const struct qmt_wire_request *request,
			     uint8_t out[QMT_WIRE_REQUEST_BYTES]);
/** @p kind tells which dialect: tcp has READ and WRITE only, and no staging. */
qmla_status_t qmt_wire_request_decode(const uint8_t in[QMT_WIRE_REQUEST_BYTES], enum qmt_kind kind,
				      struct qmt_wire_request *request);

/** Writes the message's bytes. */
void qmt_wire_reply_encode(const struct qmt_wire_reply *reply, uint8_t out[QMT_WIRE_REPLY_BYTES]);

/** Reads a reply of @p kind's dialect. QMLA_ERR_FORMAT. */
qmla_status_t qmt_wire_reply_decode(const uint8_t in[QMT_WIRE_REPLY_BYTES], enum qmt_kind kind,
				    struct qmt_wire_reply *reply);

/** The hello of a client that wants the server @p identity. */
void qmt_wire_greet(const struct qmt_identity *identity, uint8_t out[QMT_WIRE_HELLO_BYTES]);

/**
 * What a welcome means for a client that wants the server @p identity: the
 * server's refusal, QMLA_ERR_FORMAT, QMLA_ERR_PEER_RESTARTED, or QMLA_OK with
 * the largest length of an operation.
 */
qmla_status_t qmt_wire_welcomed(const uint8_t in[QMT_WIRE_WELCOME_BYTES],
				const struct qmt_identity *identity, uint64_t *max_length);

/** The server's verdict on a hello: what its welcome says. */
void qmt_wire_judge(const struct qmt_wire_hello *hello, const struct qmt_identity *identity,
		    struct qmt_wire_welcome *welcome);

#endif /* QMT_WIRE_H */
