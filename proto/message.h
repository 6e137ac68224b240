/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Unpacks protobuf-c messages within a byte budget. protobuf-c itself has no
 * limit: a small message can ask for many times its size (an empty repeated
 * field costs two bytes on the wire and dozens in memory).
 *
 * A message lives in one arena: unpacking bumps a pointer, freeing gives back a
 * few chunks, whatever the number of fields.
 */
#ifndef QMP_MESSAGE_H
#define QMP_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

/**
 * Unpacks @p size bytes as @p type, taking at most @p budget bytes of memory
 * (scratch included, rounded up by less than one chunk of 256 KiB). @p message is
 * freed with qmp_message_free. QMLA_ERR_FORMAT: truncated or malformed;
 * QMLA_ERR_TOO_LARGE: over the budget; QMLA_ERR_NO_MEMORY. Logs nothing. Any thread.
 */
qmla_status_t qmp_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
				 size_t size, size_t budget, ProtobufCMessage **message);

/** Frees a message made by this runtime. Accepts NULL. Any thread. */
void qmp_message_free(ProtobufCMessage *message);

/** True when every element of a repeated bytes field is exactly @p length bytes long. */
bool qmp_bytes_all_have_length(const ProtobufCBinaryData *values, size_t count, size_t length);

#endif /* QMP_MESSAGE_H */
