/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/blob.h"

#include "common/digest.h"
#include "transport/bytes.h"

#define ADDRESS_MAGIC      UINT32_C(0x41544d51) /* "QMTA" */
#define HANDLE_MAGIC       UINT32_C(0x48544d51) /* "QMTH" */
#define BLOB_VERSION       1
#define ADDRESS_HEAD_BYTES 32
#define HANDLE_BYTES       32

qmla_status_t qmt_identity_create(enum qmt_kind kind, struct qmt_identity *identity)
{
	struct qmt_identity fresh = {.kind = kind};
	qmla_status_t status = qmc_random_bytes(fresh.cookie, sizeof(fresh.cookie));

	if (status == QMLA_OK)
		status = qmc_random_bytes(&fresh.incarnation, sizeof(fresh.incarnation));
	if (status == QMLA_OK)
		*identity = fresh;
	return status;
}

static void head_encode(uint8_t *p, uint32_t magic, enum qmt_kind kind, uint64_t incarnation)
{
	qmt_store32(p, magic);
	p[4] = BLOB_VERSION;
	p[5] = (uint8_t)kind;
	qmt_store16(p + 6, 0);
	qmt_store64(p + 8, incarnation);
}

static qmla_status_t head_decode(const uint8_t *p, uint32_t magic, enum qmt_kind *kind,
				 uint64_t *incarnation)
{
	if (qmt_load32(p) != magic)
		return QMLA_ERR_FORMAT;
	if (p[4] != BLOB_VERSION || p[5] < QMT_KIND_TCP || p[5] > QMT_KIND_VERBS)
		return QMLA_ERR_UNSUPPORTED;
	*kind = (enum qmt_kind)p[5];
	*incarnation = qmt_load64(p + 8);
	return QMLA_OK;
}

qmla_status_t qmt_address_encode(const struct qmt_identity *identity, const char *text,
				 struct qmt_server_address *address)
{
	size_t length = strlen(text);

	if (length >= QMT_ADDRESS_TEXT_MAX)
		return QMLA_ERR_TOO_LARGE;
	memset(address, 0, sizeof(*address));
	head_encode(address->bytes, ADDRESS_MAGIC, identity->kind, identity->incarnation);
	qmt_store16(address->bytes + 6, (uint16_t)length);
	memcpy(address->bytes + 16, identity->cookie, QMT_COOKIE_BYTES);
	memcpy(address->bytes + ADDRESS_HEAD_BYTES, text, length);
	address->length = (uint32_t)(ADDRESS_HEAD_BYTES + length);
	return QMLA_OK;
}

qmla_status_t qmt_address_decode(const struct qmt_server_address *address, enum qmt_kind kind,
				 struct qmt_identity *identity, char text[QMT_ADDRESS_TEXT_MAX])
{
	struct qmt_identity parsed;
	const uint8_t *p = address->bytes;
	qmla_status_t status;
	size_t length;

	if (address->length < ADDRESS_HEAD_BYTES || address->length > QMT_ADDRESS_MAX)
		return QMLA_ERR_FORMAT;
	status = head_decode(p, ADDRESS_MAGIC, &parsed.kind, &parsed.incarnation);
	if (status != QMLA_OK)
		return status;
	if (parsed.kind != kind)
		return QMLA_ERR_UNSUPPORTED;
	length = qmt_load16(p + 6);
	if (length == 0 || length >= QMT_ADDRESS_TEXT_MAX ||
	    length != address->length - ADDRESS_HEAD_BYTES ||
	    memchr(p + ADDRESS_HEAD_BYTES, '\0', length))
		return QMLA_ERR_FORMAT;
	memcpy(parsed.cookie, p + 16, QMT_COOKIE_BYTES);
	memcpy(text, p + ADDRESS_HEAD_BYTES, length);
	text[length] = '\0';
	*identity = parsed;
	return QMLA_OK;
}

void qmt_handle_encode(const struct qmt_identity *identity, uint64_t region, uint64_t bytes,
		       struct qmt_handle *handle)
{
	memset(handle, 0, sizeof(*handle));
	head_encode(handle->bytes, HANDLE_MAGIC, identity->kind, identity->incarnation);
	qmt_store64(handle->bytes + 16, region);
	qmt_store64(handle->bytes + 24, bytes);
	handle->length = HANDLE_BYTES;
}

qmla_status_t qmt_handle_decode(const struct qmt_handle *handle, struct qmt_remote_region *region)
{
	struct qmt_remote_region parsed;
	qmla_status_t status;

	if (handle->length != HANDLE_BYTES)
		return QMLA_ERR_FORMAT;
	status = head_decode(handle->bytes, HANDLE_MAGIC, &parsed.kind, &parsed.incarnation);
	if (status != QMLA_OK)
		return status;
	if (qmt_load16(handle->bytes + 6) != 0)
		return QMLA_ERR_FORMAT;
	parsed.region = qmt_load64(handle->bytes + 16);
	parsed.bytes = qmt_load64(handle->bytes + 24);
	*region = parsed;
	return QMLA_OK;
}

qmla_status_t qmt_op_check(const struct qmt_op *op, const struct qmt_identity *identity,
			   uint64_t max_length, struct qmt_remote_region *region)
{
	struct qmt_remote_region parsed;
	qmla_status_t status;

	if (!op->remote || !op->local || op->length == 0 ||
	    (op->access != QMT_READ && op->access != QMT_WRITE))
		return QMLA_ERR_INVALID_ARGUMENT;
	if (op->length > max_length)
		return QMLA_ERR_TOO_LARGE;
	status = qmt_handle_decode(op->remote, &parsed);
	if (status != QMLA_OK)
		return status;
	if (parsed.kind != identity->kind)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (parsed.incarnation != identity->incarnation)
		return QMLA_ERR_PEER_RESTARTED;
	/* In this order: offset + length may wrap. */
	if (op->length > parsed.bytes || op->remote_offset > parsed.bytes - op->length)
		return QMLA_ERR_INVALID_ARGUMENT;
	*region = parsed;
	return QMLA_OK;
}
