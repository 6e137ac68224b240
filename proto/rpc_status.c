/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_status.h"

#include <grpc/slice.h>
#include <stdlib.h>
#include <string.h>

#include "common/status.h"

grpc_status_code qmp_grpc_code_from_status(qmla_status_t status)
{
	switch (status) {
	case QMLA_OK:
		return GRPC_STATUS_OK;
	case QMLA_ERR_INVALID_ARGUMENT:
	case QMLA_ERR_FORMAT:
		return GRPC_STATUS_INVALID_ARGUMENT;
	case QMLA_ERR_NOT_FOUND:
		return GRPC_STATUS_NOT_FOUND;
	case QMLA_ERR_ALREADY_EXISTS:
		return GRPC_STATUS_ALREADY_EXISTS;
	case QMLA_ERR_TOO_LARGE:
		return GRPC_STATUS_OUT_OF_RANGE;
	case QMLA_ERR_IDENTITY_MISMATCH:
	case QMLA_ERR_LAYOUT_MISMATCH:
	case QMLA_ERR_PEER_RESTARTED:
	case QMLA_ERR_LEASE_EXPIRED:
		return GRPC_STATUS_FAILED_PRECONDITION;
	case QMLA_ERR_PERMISSION:
		return GRPC_STATUS_PERMISSION_DENIED;
	case QMLA_ERR_UNSUPPORTED:
		return GRPC_STATUS_UNIMPLEMENTED;
	case QMLA_ERR_NO_MEMORY:
	case QMLA_ERR_RESOURCE_EXHAUSTED:
	case QMLA_ERR_NO_SPACE:
		return GRPC_STATUS_RESOURCE_EXHAUSTED;
	case QMLA_ERR_BUSY:
	case QMLA_ERR_STALE:
		return GRPC_STATUS_ABORTED;
	case QMLA_ERR_UNAVAILABLE:
	case QMLA_ERR_DRAINING:
		return GRPC_STATUS_UNAVAILABLE;
	case QMLA_ERR_DEADLINE:
		return GRPC_STATUS_DEADLINE_EXCEEDED;
	case QMLA_ERR_CANCELLED:
		return GRPC_STATUS_CANCELLED;
	case QMLA_ERR_CORRUPT:
		return GRPC_STATUS_DATA_LOSS;
	case QMLA_ERR_IO:
	case QMLA_ERR_INTERNAL:
		return GRPC_STATUS_INTERNAL;
	}
	return GRPC_STATUS_INTERNAL;
}

/* gRPC uses one code for "try later" and "never with this size"; only its text differs. */
static bool is_size_refusal(grpc_slice details)
{
	static const char text[] = "message larger than max";
	const char *begin = (const char *)GRPC_SLICE_START_PTR(details);

	return memmem(begin, GRPC_SLICE_LENGTH(details), text, sizeof(text) - 1) != NULL;
}

static qmla_status_t status_from_code(grpc_status_code code, grpc_slice details,
				      bool cancelled_here)
{
	switch (code) {
	case GRPC_STATUS_OK:
		return QMLA_OK;
	case GRPC_STATUS_CANCELLED:
		/* QMLA_ERR_CANCELLED is for this side only. */
		return cancelled_here ? QMLA_ERR_CANCELLED : QMLA_ERR_UNAVAILABLE;
	case GRPC_STATUS_INVALID_ARGUMENT:
	case GRPC_STATUS_FAILED_PRECONDITION:
		return QMLA_ERR_INVALID_ARGUMENT;
	case GRPC_STATUS_DEADLINE_EXCEEDED:
		return QMLA_ERR_DEADLINE;
	case GRPC_STATUS_NOT_FOUND:
		return QMLA_ERR_NOT_FOUND;
	case GRPC_STATUS_ALREADY_EXISTS:
		return QMLA_ERR_ALREADY_EXISTS;
	case GRPC_STATUS_PERMISSION_DENIED:
	case GRPC_STATUS_UNAUTHENTICATED:
		return QMLA_ERR_PERMISSION;
	case GRPC_STATUS_RESOURCE_EXHAUSTED:
		return is_size_refusal(details) ? QMLA_ERR_TOO_LARGE : QMLA_ERR_RESOURCE_EXHAUSTED;
	case GRPC_STATUS_ABORTED:
		return QMLA_ERR_BUSY;
	case GRPC_STATUS_OUT_OF_RANGE:
		return QMLA_ERR_TOO_LARGE;
	case GRPC_STATUS_UNIMPLEMENTED:
		return QMLA_ERR_UNSUPPORTED;
	case GRPC_STATUS_UNAVAILABLE:
		return QMLA_ERR_UNAVAILABLE;
	case GRPC_STATUS_DATA_LOSS:
		return QMLA_ERR_CORRUPT;
	default:
		return QMLA_ERR_INTERNAL;
	}
}

/* True with the peer's own status; anything unknown or "OK" is as good as absent. */
static bool find_own_status(const grpc_metadata_array *trailing, qmla_status_t *status)
{
	for (size_t i = 0; i < trailing->count; i++) {
		const grpc_metadata *entry = &trailing->metadata[i];
		size_t length = GRPC_SLICE_LENGTH(entry->value);
		char text[8] = {0};
		char *end;
		long value;

		if (grpc_slice_str_cmp(entry->key, QMP_STATUS_KEY) || length >= sizeof(text))
			continue;
		memcpy(text, GRPC_SLICE_START_PTR(entry->value), length);
		value = strtol(text, &end, 10);
		if (end == text || *end || value >= 0 || !qmc_status_is_known((int)value))
			continue;
		*status = (qmla_status_t)value;
		return true;
	}
	return false;
}

qmla_status_t qmp_status_from_grpc(grpc_status_code code, grpc_slice details,
				   const grpc_metadata_array *trailing, bool cancelled_here)
{
	qmla_status_t status;

	if (code != GRPC_STATUS_OK && find_own_status(trailing, &status))
		return status;
	return status_from_code(code, details, cancelled_here);
}
