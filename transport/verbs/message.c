/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/message.h"

#include <string.h>

#include "common/status.h"
#include "transport/bytes.h"

#define OFFER_MAGIC   UINT32_C(0x4f544d51) /* "QMTO" */
#define ANSWER_MAGIC  UINT32_C(0x4e544d51) /* "QMTN" */
#define VERSION       1
#define OFFER_HEAD    48
#define ANSWER_HEAD   72
#define ADDRESS_BYTES 32
#define RAIL_HEAD     (4 + ADDRESS_BYTES)
#define QPN_MASK      UINT32_C(0xffffff)

/* ---- addresses of queue pairs ---- */

static void address_encode(const struct qmt_qp_address *address, uint8_t *p)
{
	memset(p, 0, ADDRESS_BYTES);
	qmt_store32(p, address->qpn);
	qmt_store32(p + 4, address->psn);
	memcpy(p + 8, address->gid.raw, sizeof(address->gid.raw));
	qmt_store16(p + 24, address->lid);
	p[26] = address->mtu;
	p[27] = address->ethernet;
	p[28] = address->reads_served;
	p[29] = address->reads_started;
}

static bool address_decode(const uint8_t *p, struct qmt_qp_address *address)
{
	address->qpn = qmt_load32(p);
	address->psn = qmt_load32(p + 4);
	memcpy(address->gid.raw, p + 8, sizeof(address->gid.raw));
	address->lid = qmt_load16(p + 24);
	address->mtu = p[26];
	address->ethernet = p[27] != 0;
	address->reads_served = p[28];
	address->reads_started = p[29];
	return address->qpn <= QPN_MASK && address->psn <= QPN_MASK && p[26] >= IBV_MTU_256 &&
	       p[26] <= IBV_MTU_4096 && p[27] <= 1 && p[28] > 0 && p[29] > 0 &&
	       qmt_load16(p + 30) == 0;
}

static void head_encode(uint8_t *p, uint32_t magic, size_t rails, uint64_t incarnation)
{
	qmt_store32(p, magic);
	p[4] = VERSION;
	p[5] = QMT_KIND_VERBS;
	qmt_store16(p + 6, (uint16_t)rails);
	qmt_store64(p + 8, incarnation);
}

static qmla_status_t head_decode(const uint8_t *p, uint32_t magic, size_t *rails,
				 uint64_t *incarnation)
{
	if (qmt_load32(p) != magic)
		return QMLA_ERR_FORMAT;
	if (p[4] != VERSION || p[5] != QMT_KIND_VERBS)
		return QMLA_ERR_UNSUPPORTED;
	*rails = qmt_load16(p + 6);
	*incarnation = qmt_load64(p + 8);
	return *rails >= 1 && *rails <= QMT_RAILS_MAX ? QMLA_OK : QMLA_ERR_FORMAT;
}

/* ---- offer ---- */

void qmt_verbs_offer_encode(const struct qmt_verbs_offer *offer, struct qmt_offer *blob)
{
	uint8_t *p = blob->bytes;

	head_encode(p, OFFER_MAGIC, offer->rails, offer->server.incarnation);
	memcpy(p + 16, offer->server.cookie, QMT_COOKIE_BYTES);
	memcpy(p + 32, offer->connection, QMT_CONNECTION_BYTES);
	p += OFFER_HEAD;
	for (size_t i = 0; i < offer->rails; i++, p += ADDRESS_BYTES)
		address_encode(&offer->addresses[i], p);
	blob->length = (uint32_t)(p - blob->bytes);
}

qmla_status_t qmt_verbs_offer_decode(const struct qmt_offer *blob, struct qmt_verbs_offer *offer)
{
	struct qmt_verbs_offer parsed = {.server = {.kind = QMT_KIND_VERBS}};
	const uint8_t *p = blob->bytes;
	qmla_status_t status;

	if (blob->length < OFFER_HEAD || blob->length > QMT_OFFER_MAX)
		return QMLA_ERR_FORMAT;
	status = head_decode(p, OFFER_MAGIC, &parsed.rails, &parsed.server.incarnation);
	if (status != QMLA_OK)
		return status;
	if (blob->length != OFFER_HEAD + parsed.rails * ADDRESS_BYTES)
		return QMLA_ERR_FORMAT;
	memcpy(parsed.server.cookie, p + 16, QMT_COOKIE_BYTES);
	memcpy(parsed.connection, p + 32, QMT_CONNECTION_BYTES);
	p += OFFER_HEAD;
	for (size_t i = 0; i < parsed.rails; i++, p += ADDRESS_BYTES) {
		if (!address_decode(p, &parsed.addresses[i]))
			return QMLA_ERR_FORMAT;
	}
	*offer = parsed;
	return QMLA_OK;
}

/* ---- answer ---- */

qmla_status_t qmt_verbs_answer_encode(const struct qmt_verbs_answer *answer, struct qmt_offer *blob)
{
	size_t each = RAIL_HEAD + 4 * answer->chunks;
	uint8_t *p = blob->bytes;

	if (answer->chunks > QMT_CHUNKS_MAX ||
	    ANSWER_HEAD + answer->rails * each > sizeof(blob->bytes))
		return QMLA_ERR_TOO_LARGE;
	head_encode(p, ANSWER_MAGIC, answer->rails, answer->incarnation);
	memcpy(p + 16, answer->connection, QMT_CONNECTION_BYTES);
	qmt_store64(p + 32, answer->region);
	qmt_store64(p + 40, answer->bytes);
	qmt_store64(p + 48, answer->base);
	qmt_store64(p + 56, answer->chunk_bytes);
	qmt_store16(p + 64, (uint16_t)answer->chunks);
	qmt_store16(p + 66, (uint16_t)answer->write_mode);
	qmt_store16(p + 68, answer->write_depth);
	qmt_store16(p + 70, 0);
	p += ANSWER_HEAD;
	for (size_t i = 0; i < answer->rails; i++) {
		const struct qmt_answer_rail *rail = &answer->rail[i];

		qmt_store16(p, rail->offered);
		qmt_store16(p + 2, 0);
		address_encode(&rail->address, p + 4);
		for (size_t c = 0; c < answer->chunks; c++)
			qmt_store32(p + RAIL_HEAD + 4 * c, rail->rkeys[c]);
		p += each;
	}
	blob->length = (uint32_t)(p - blob->bytes);
	return QMLA_OK;
}

static bool answer_is_sound(const struct qmt_verbs_answer *answer)
{
	return answer->bytes > 0 && answer->bytes <= UINT64_MAX - answer->base &&
	       answer->chunk_bytes > 0 && answer->chunks > 0 && answer->chunks <= QMT_CHUNKS_MAX &&
	       (answer->bytes - 1) / answer->chunk_bytes + 1 == answer->chunks &&
	       (answer->write_mode == QMT_WRITE_WINDOW || answer->write_mode == QMT_WRITE_PULL) &&
	       answer->write_depth > 0;
}

qmla_status_t qmt_verbs_answer_decode(const struct qmt_offer *blob, struct qmt_verbs_answer *answer)
{
	const uint8_t *p = blob->bytes;
	qmla_status_t status;
	unsigned seen = 0;
	size_t each;

	if (blob->length < ANSWER_HEAD || blob->length > QMT_OFFER_MAX)
		return QMLA_ERR_FORMAT;
	memset(answer, 0, sizeof(*answer));
	status = head_decode(p, ANSWER_MAGIC, &answer->rails, &answer->incarnation);
	if (status != QMLA_OK)
		return status;
	memcpy(answer->connection, p + 16, QMT_CONNECTION_BYTES);
	answer->region = qmt_load64(p + 32);
	answer->bytes = qmt_load64(p + 40);
	answer->base = qmt_load64(p + 48);
	answer->chunk_bytes = qmt_load64(p + 56);
	answer->chunks = qmt_load16(p + 64);
	answer->write_mode = (enum qmt_write_mode)qmt_load16(p + 66);
	answer->write_depth = qmt_load16(p + 68);
	each = RAIL_HEAD + 4 * answer->chunks;
	if (!answer_is_sound(answer) || qmt_load16(p + 70) != 0 ||
	    blob->length != ANSWER_HEAD + answer->rails * each)
		return QMLA_ERR_FORMAT;
	p += ANSWER_HEAD;
	for (size_t i = 0; i < answer->rails; i++, p += each) {
		struct qmt_answer_rail *rail = &answer->rail[i];

		rail->offered = qmt_load16(p);
		if (rail->offered >= QMT_RAILS_MAX || qmt_load16(p + 2) != 0 ||
		    (seen & 1u << rail->offered) || !address_decode(p + 4, &rail->address))
			return QMLA_ERR_FORMAT;
		seen |= 1u << rail->offered;
		for (size_t c = 0; c < answer->chunks; c++)
			rail->rkeys[c] = qmt_load32(p + RAIL_HEAD + 4 * c);
	}
	return QMLA_OK;
}

/* ---- messages ---- */

void qmt_message_encode(const struct qmt_message *message, uint8_t out[QMT_MESSAGE_BYTES])
{
	qmt_store16(out, (uint16_t)message->kind);
	qmt_store16(out + 2, 0);
	qmt_store32(out + 4, (uint32_t)message->status);
	qmt_store64(out + 8, message->id);
	qmt_store64(out + 16, message->region);
	qmt_store64(out + 24, message->offset);
	qmt_store64(out + 32, message->length);
	memcpy(out + 40, message->capability, QMT_CAPABILITY_BYTES);
	qmt_store64(out + 56, message->address);
	for (size_t i = 0; i < QMT_WINDOWS_MAX; i++)
		qmt_store32(out + 64 + 4 * i, message->rkeys[i]);
}

qmla_status_t qmt_message_decode(const uint8_t *in, size_t bytes, struct qmt_message *message)
{
	uint16_t kind;
	int status;

	if (bytes != QMT_MESSAGE_BYTES)
		return QMLA_ERR_FORMAT;
	kind = qmt_load16(in);
	status = (int)qmt_load32(in + 4);
	if (kind < QMT_MESSAGE_HELLO || kind > QMT_MESSAGE_BYE || qmt_load16(in + 2) != 0 ||
	    !qmc_status_is_known(status))
		return QMLA_ERR_FORMAT;
	message->kind = (enum qmt_message_kind)kind;
	message->status = (qmla_status_t)status;
	message->id = qmt_load64(in + 8);
	message->region = qmt_load64(in + 16);
	message->offset = qmt_load64(in + 24);
	message->length = qmt_load64(in + 32);
	memcpy(message->capability, in + 40, QMT_CAPABILITY_BYTES);
	message->address = qmt_load64(in + 56);
	for (size_t i = 0; i < QMT_WINDOWS_MAX; i++)
		message->rkeys[i] = qmt_load32(in + 64 + 4 * i);
	return QMLA_OK;
}

uint64_t qmt_connection_number(const uint8_t connection[QMT_CONNECTION_BYTES])
{
	return qmt_load64(connection);
}
