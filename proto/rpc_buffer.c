/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_buffer.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdlib.h>

#include "proto/message.h"

/* Below this the slice keeps its own short count of the bytes; above it, a malloc
 * that may fail is better than grpc_slice_malloc, which aborts. */
#define SLICE_OWN_MAX 4096

qmla_status_t qmp_buffer_pack(const ProtobufCMessage *message, grpc_byte_buffer **buffer)
{
	size_t size = protobuf_c_message_get_packed_size(message);
	grpc_slice slice;

	if (size <= SLICE_OWN_MAX) {
		slice = grpc_slice_malloc(size);
	} else {
		void *memory = malloc(size);

		if (!memory)
			return QMLA_ERR_NO_MEMORY;
		slice = grpc_slice_new(memory, size, free);
	}
	protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
	*buffer = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	return QMLA_OK;
}

qmla_status_t qmp_buffer_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type,
				size_t budget, ProtobufCMessage **message)
{
	grpc_byte_buffer_reader reader;
	grpc_slice slice;
	qmla_status_t status;

	if (!buffer || !grpc_byte_buffer_reader_init(&reader, buffer))
		return QMLA_ERR_FORMAT;
	slice = grpc_byte_buffer_reader_readall(&reader);
	status = qmp_message_unpack(type, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice),
				    budget, message);
	grpc_slice_unref(slice);
	grpc_byte_buffer_reader_destroy(&reader);
	return status;
}
