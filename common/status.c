/* SPDX-License-Identifier: Apache-2.0 */
#include "common/status.h"

#include <errno.h>
#include <stddef.h>

struct status_entry {
	qmla_status_t status;
	const char *name;
	const char *text;
};

static const struct status_entry status_table[] = {
	{QMLA_OK, "ok", "success"},
	{QMLA_ERR_INVALID_ARGUMENT, "invalid_argument",
	 "a value, shape or size is out of its range"},
	{QMLA_ERR_NOT_FOUND, "not_found", "no such key, file or object"},
	{QMLA_ERR_ALREADY_EXISTS, "already_exists", "the key is there already"},
	{QMLA_ERR_TOO_LARGE, "too_large", "over a stated limit"},
	{QMLA_ERR_IDENTITY_MISMATCH, "identity_mismatch", "made with other weights or constants"},
	{QMLA_ERR_LAYOUT_MISMATCH, "layout_mismatch", "other page format or geometry"},
	{QMLA_ERR_PERMISSION, "permission", "the capability or credentials do not allow it"},
	{QMLA_ERR_UNSUPPORTED, "unsupported", "not offered by this build or device"},
	{QMLA_ERR_FORMAT, "format", "malformed file or message"},
	{QMLA_ERR_NO_MEMORY, "no_memory", "memory could not be allocated"},
	{QMLA_ERR_RESOURCE_EXHAUSTED, "resource_exhausted", "full for now, try again later"},
	{QMLA_ERR_BUSY, "busy", "in use by someone else"},
	{QMLA_ERR_IO, "io", "a read or write of a file or device failed"},
	{QMLA_ERR_NO_SPACE, "no_space", "the disk is full or read-only"},
	{QMLA_ERR_UNAVAILABLE, "unavailable", "the peer cannot be reached"},
	{QMLA_ERR_DEADLINE, "deadline", "the deadline passed first"},
	{QMLA_ERR_CANCELLED, "cancelled", "cancelled by this side"},
	{QMLA_ERR_PEER_RESTARTED, "peer_restarted",
	 "the handle belongs to another life of the node"},
	{QMLA_ERR_DRAINING, "draining", "the node is leaving and takes no new work"},
	{QMLA_ERR_LEASE_EXPIRED, "lease_expired", "the lease ended before the transfer did"},
	{QMLA_ERR_STALE, "stale", "the slot holds another generation or key"},
	{QMLA_ERR_CORRUPT, "corrupt", "a checksum does not match"},
	{QMLA_ERR_INTERNAL, "internal", "broken invariant, please report it"},
};

static const struct status_entry *status_find(int value)
{
	for (size_t i = 0; i < sizeof(status_table) / sizeof(status_table[0]); i++) {
		if ((int)status_table[i].status == value)
			return &status_table[i];
	}
	return NULL;
}

const char *qmla_status_name(qmla_status_t status)
{
	const struct status_entry *entry = status_find((int)status);

	return entry ? entry->name : "unknown";
}

const char *qmla_status_text(qmla_status_t status)
{
	const struct status_entry *entry = status_find((int)status);

	return entry ? entry->text : "unknown status";
}

bool qmc_status_is_known(int value)
{
	return status_find(value) != NULL;
}

bool qmc_status_is_retryable(qmla_status_t status)
{
	return status <= QMLA_ERR_NO_MEMORY && status > QMLA_ERR_LEASE_EXPIRED &&
	       status != QMLA_ERR_CANCELLED;
}

qmla_status_t qmc_status_from_errno(int error)
{
	switch (error) {
	case 0:
		return QMLA_OK;
	case EINVAL:
	case ENAMETOOLONG:
		return QMLA_ERR_INVALID_ARGUMENT;
	case ENOENT:
	case ENOTDIR:
	case ENXIO:
		return QMLA_ERR_NOT_FOUND;
	case EEXIST:
		return QMLA_ERR_ALREADY_EXISTS;
	case EACCES:
	case EPERM:
		return QMLA_ERR_PERMISSION;
	case EOPNOTSUPP:
	case EPROTONOSUPPORT:
	case EAFNOSUPPORT:
	case ENOSYS:
		return QMLA_ERR_UNSUPPORTED;
	case EPROTO:
	case EBADMSG:
		return QMLA_ERR_FORMAT;
	case EMSGSIZE:
	case EFBIG:
	case EOVERFLOW:
		return QMLA_ERR_TOO_LARGE;
	case ENOMEM:
		return QMLA_ERR_NO_MEMORY;
	case EMFILE:
	case ENFILE:
	case EAGAIN:
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	case EBUSY:
	case EADDRINUSE:
		return QMLA_ERR_BUSY;
	case ENOSPC:
	case EDQUOT:
	case EROFS:
		return QMLA_ERR_NO_SPACE;
	case EIO:
		return QMLA_ERR_IO;
	case ECONNREFUSED:
	case ECONNRESET:
	case ECONNABORTED:
	case ENOTCONN:
	case EPIPE:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case ENETDOWN:
	case EADDRNOTAVAIL:
		return QMLA_ERR_UNAVAILABLE;
	case ETIMEDOUT:
		return QMLA_ERR_DEADLINE;
	case ECANCELED:
		return QMLA_ERR_CANCELLED;
	default:
		return QMLA_ERR_INTERNAL;
	}
}
