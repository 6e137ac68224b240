/* SPDX-License-Identifier: Apache-2.0 */
/** @file protobuf-c messages in gRPC's byte buffers. Internal to proto/. */
#ifndef QMP_RPC_BUFFER_H
#define QMP_RPC_BUFFER_H

#include <grpc/byte_buffer.h>
#include <protobuf-c/protobuf-c.h>

#include <qmla/status.h>

/** Packs @p message. @p buffer is destroyed with grpc_byte_buffer_destroy. Any thread. */
qmla_status_t qmp_buffer_pack(const ProtobufCMessage *message, grpc_byte_buffer **buffer);

/**
 * Unpacks @p buffer, which stays the caller's, within @p budget bytes; statuses of
 * qmp_message_unpack, and QMLA_ERR_FORMAT for NULL (a call without a message). Any thread.
 */
qmla_status_t qmp_buffer_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type,
				size_t budget, ProtobufCMessage **message);

#endif /* QMP_RPC_BUFFER_H */
