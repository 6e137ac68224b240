/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/wire.h"

#include "common/digest.h"
#include "common/status.h"
#include "transport/bytes.h"

#define HELLO_MAGIC   UINT32_C(0x31544d51) /* "QMT1" */
#define WELCOME_MAGIC UINT32_C(0x57544d51) /* "QMTW" */

static qmla_status_t status_decode(const uint8_t *p, qmla_status_t *status)
{
	int32_t value = (int32_t)qmt_load32(p);

	if (!qmc_status_is_known(value))
		return QMLA_ERR_FORMAT;
	*status = (qmla_status_t)value;
	return QMLA_OK;
}

void qmt_wire_hello_encode(const struct qmt_wire_hello *hello, uint8_t out[QMT_WIRE_HELLO_BYTES])
{
	memset(out, 0, QMT_WIRE_HELLO_BYTES);
	qmt_store32(out, HELLO_MAGIC);
	qmt_store16(out + 4, hello->version_min);
	qmt_store16(out + 6, hello->version_max);
	qmt_store64(out + 8, hello->incarnation);
	memcpy(out + 16, hello->cookie, QMT_COOKIE_BYTES);
}

qmla_status_t qmt_wire_hello_decode(const uint8_t in[QMT_WIRE_HELLO_BYTES],
				    struct qmt_wire_hello *hello)
{
	struct qmt_wire_hello parsed = {
		.version_min = qmt_load16(in + 4),
		.version_max = qmt_load16(in + 6),
		.incarnation = qmt_load64(in + 8),
	};

	/* Bytes 32…47 are a later version's to use: not looked at. */
	if (qmt_load32(in) != HELLO_MAGIC || parsed.version_min == 0 ||
	    parsed.version_min > parsed.version_max)
		return QMLA_ERR_FORMAT;
	memcpy(parsed.cookie, in + 16, QMT_COOKIE_BYTES);
	*hello = parsed;
	return QMLA_OK;
}

void qmt_wire_welcome_encode(const struct qmt_wire_welcome *welcome,
			     uint8_t out[QMT_WIRE_WELCOME_BYTES])
{
	memset(out, 0, QMT_WIRE_WELCOME_BYTES);
	qmt_store32(out, WELCOME_MAGIC);
	qmt_store16(out + 4, welcome->version);
	qmt_store32(out + 8, (uint32_t)welcome->status);
	qmt_store64(out + 16, welcome->incarnation);
	qmt_store64(out + 24, welcome->max_length);
}

qmla_status_t qmt_wire_welcome_decode(const uint8_t in[QMT_WIRE_WELCOME_BYTES],
				      struct qmt_wire_welcome *welcome)
{
	struct qmt_wire_welcome parsed = {
		.version = qmt_load16(in + 4),
		.incarnation = qmt_load64(in + 16),
		.max_length = qmt_load64(in + 24),
	};

	if (qmt_load32(in) != WELCOME_MAGIC || status_decode(in + 8, &parsed.status) != QMLA_OK)
		return QMLA_ERR_FORMAT;
	if (parsed.status == QMLA_OK &&
	    (parsed.version != QMT_WIRE_VERSION || parsed.max_length == 0))
		return QMLA_ERR_FORMAT;
	*welcome = parsed;
	return QMLA_OK;
}

void qmt_wire_request_encode(const struct qmt_wire_request *request,
			     uint8_t out[QMT_WIRE_REQUEST_BYTES])
{
	qmt_store16(out, (uint16_t)request->kind);
	qmt_store16(out + 2, 0);
	qmt_store32(out + 4, (uint32_t)request->status);
	qmt_store64(out + 8, request->id);
	qmt_store64(out + 16, request->region);
	qmt_store64(out + 24, request->offset);
	qmt_store64(out + 32, request->length);
	memcpy(out + 40, request->capability, QMT_CAPABILITY_BYTES);
	qmt_store64(out + 56, request->staging);
}

static bool request_is_sane(const struct qmt_wire_request *request, enum qmt_kind kind)
{
	bool shm = kind == QMT_KIND_SHM;

	if (request->status != QMLA_OK && request->kind != QMT_WIRE_DONE)
		return false;
	if (request->staging && (!shm || request->kind != QMT_WIRE_WRITE))
		return false;
	switch (request->kind) {
	case QMT_WIRE_READ:
	case QMT_WIRE_WRITE:
		return request->length > 0 && request->length <= QMT_LENGTH_MAX;
	case QMT_WIRE_DONE:
		return shm && request->length == 0;
	case QMT_WIRE_STAGE:
		return shm && request->length > 0 && request->length <= QMT_LENGTH_MAX;
	}
	return false;
}

qmla_status_t qmt_wire_request_decode(const uint8_t in[QMT_WIRE_REQUEST_BYTES], enum qmt_kind kind,
				      struct qmt_wire_request *request)
{
	struct qmt_wire_request parsed = {
		.id = qmt_load64(in + 8),
		.region = qmt_load64(in + 16),
		.offset = qmt_load64(in + 24),
		.length = qmt_load64(in + 32),
		.staging = qmt_load64(in + 56),
	};
	uint16_t number = qmt_load16(in);

	if (number < QMT_WIRE_READ || number > QMT_WIRE_STAGE || qmt_load16(in + 2) != 0 ||
	    status_decode(in + 4, &parsed.status) != QMLA_OK)
		return QMLA_ERR_FORMAT;
	parsed.kind = (enum qmt_wire_kind)number;
	memcpy(parsed.capability, in + 40, QMT_CAPABILITY_BYTES);
	if (!request_is_sane(&parsed, kind))
		return QMLA_ERR_FORMAT;
	*request = parsed;
	return QMLA_OK;
}

void qmt_wire_reply_encode(const struct qmt_wire_reply *reply, uint8_t out[QMT_WIRE_REPLY_BYTES])
{
	qmt_store16(out, (uint16_t)(reply->kind | 0x8000));
	qmt_store16(out + 2, 0);
	qmt_store32(out + 4, (uint32_t)reply->status);
	qmt_store64(out + 8, reply->id);
	qmt_store64(out + 16, reply->length);
	qmt_store64(out + 24, reply->region_bytes);
}

qmla_status_t qmt_wire_reply_decode(const uint8_t in[QMT_WIRE_REPLY_BYTES], enum qmt_kind kind,
				    struct qmt_wire_reply *reply)
{
	struct qmt_wire_reply parsed = {
		.id = qmt_load64(in + 8),
		.length = qmt_load64(in + 16),
		.region_bytes = qmt_load64(in + 24),
	};
	unsigned number = qmt_load16(in) ^ 0x8000u;

	if ((number != QMT_WIRE_READ && number != QMT_WIRE_WRITE) || qmt_load16(in + 2) != 0 ||
	    status_decode(in + 4, &parsed.status) != QMLA_OK)
		return QMLA_ERR_FORMAT;
	parsed.kind = (enum qmt_wire_kind)number;
	if ((parsed.status == QMLA_OK) != (parsed.length > 0) || parsed.length > QMT_LENGTH_MAX)
		return QMLA_ERR_FORMAT;
	if (parsed.region_bytes &&
	    (kind != QMT_KIND_SHM || parsed.kind != QMT_WIRE_READ || parsed.status != QMLA_OK))
		return QMLA_ERR_FORMAT;
	*reply = parsed;
	return QMLA_OK;
}

void qmt_wire_greet(const struct qmt_identity *identity, uint8_t out[QMT_WIRE_HELLO_BYTES])
{
	struct qmt_wire_hello hello = {.version_min = QMT_WIRE_VERSION,
				       .version_max = QMT_WIRE_VERSION,
				       .incarnation = identity->incarnation};

	memcpy(hello.cookie, identity->cookie, QMT_COOKIE_BYTES);
	qmt_wire_hello_encode(&hello, out);
}

qmla_status_t qmt_wire_welcomed(const uint8_t in[QMT_WIRE_WELCOME_BYTES],
				const struct qmt_identity *identity, uint64_t *max_length)
{
	struct qmt_wire_welcome welcome;
	qmla_status_t status = qmt_wire_welcome_decode(in, &welcome);

	if (status != QMLA_OK)
		return status;
	if (welcome.status != QMLA_OK)
		return welcome.status;
	if (welcome.incarnation != identity->incarnation)
		return QMLA_ERR_PEER_RESTARTED;
	*max_length = welcome.max_length;
	return QMLA_OK;
}

void qmt_wire_judge(const struct qmt_wire_hello *hello, const struct qmt_identity *identity,
		    struct qmt_wire_welcome *welcome)
{
	bool version =
		hello->version_min <= QMT_WIRE_VERSION && hello->version_max >= QMT_WIRE_VERSION;
	bool cookie = qmc_equal_constant_time(hello->cookie, identity->cookie, QMT_COOKIE_BYTES);

	*welcome = (struct qmt_wire_welcome){.version = QMT_WIRE_VERSION,
					     .incarnation = identity->incarnation,
					     .max_length = QMT_LENGTH_MAX};
	if (!version)
		welcome->status = QMLA_ERR_UNSUPPORTED;
	else if (hello->incarnation != identity->incarnation)
		welcome->status = QMLA_ERR_PEER_RESTARTED;
	else if (!cookie)
		welcome->status = QMLA_ERR_PERMISSION;
}
