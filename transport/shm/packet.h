/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Packets of the shm back end: one SOCK_SEQPACKET record holds one handshake
 * message, or 1…64 requests, or 1…64 replies, and at most one descriptor.
 * Any thread; never block.
 */
#ifndef QMT_SHM_PACKET_H
#define QMT_SHM_PACKET_H

#include <stddef.h>

#include "transport/wire.h"

#define QMT_PACKET_MESSAGES 64
#define QMT_PACKET_BYTES    (QMT_PACKET_MESSAGES * QMT_WIRE_REQUEST_BYTES)

enum qmt_packet_result {
	QMT_PACKET_OK,
	QMT_PACKET_WAIT,   /**< would block */
	QMT_PACKET_CLOSED, /**< the peer is gone; errno says why, 0 for an orderly close */
	QMT_PACKET_BROKEN, /**< oversized, or more than one descriptor */
};

/** Sends @p bytes, with a copy of @p passed unless it is -1, in one record. */
enum qmt_packet_result qmt_packet_send(int fd, const void *data, size_t bytes, int passed);

/**
 * Receives one record of at most @p size bytes. @p passed receives the descriptor
 * that came along, the caller's to close, or -1.
 */
enum qmt_packet_result qmt_packet_receive(int fd, void *data, size_t size, size_t *bytes,
					  int *passed);

/**
 * Reads a record of requests. A STAGE stands alone and has a descriptor, other
 * records have none; @p requests holds QMT_PACKET_MESSAGES. QMLA_ERR_FORMAT.
 */
qmla_status_t qmt_packet_requests(const uint8_t *data, size_t bytes, bool with_descriptor,
				  struct qmt_wire_request *requests, size_t *count);

/**
 * Reads a record of replies. A descriptor belongs to the one reply that names a
 * region's size, which is the last of its record. QMLA_ERR_FORMAT.
 */
qmla_status_t qmt_packet_replies(const uint8_t *data, size_t bytes, bool with_descriptor,
				 struct qmt_wire_reply *replies, size_t *count);

#endif /* QMT_SHM_PACKET_H */
