/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offers, answers and messages of the verbs back end: whatever decodes encodes to the
 * same bytes again (reserved ones are zero), and no field leads outside its bounds. The
 * first byte picks the decoder.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
	if (!holds)
		abort();
}

static void try_offer(const struct qmt_offer *blob)
{
	struct qmt_verbs_offer offer;
	struct qmt_offer again;

	if (qmt_verbs_offer_decode(blob, &offer) != QMLA_OK)
		return;
	must(offer.rails >= 1 && offer.rails <= QMT_RAILS_MAX);
	qmt_verbs_offer_encode(&offer, &again);
	must(again.length == blob->length && memcmp(again.bytes, blob->bytes, blob->length) == 0);
}

static void try_answer(const struct qmt_offer *blob)
{
	struct qmt_verbs_answer answer;
	struct qmt_offer again;

	if (qmt_verbs_answer_decode(blob, &answer) != QMLA_OK)
		return;
	must(answer.chunks <= QMT_CHUNKS_MAX && answer.rails <= QMT_RAILS_MAX);
	/* The last byte of the region is in the last piece, and an address. */
	must((answer.bytes - 1) / answer.chunk_bytes == answer.chunks - 1);
	must(answer.base + (answer.bytes - 1) >= answer.base);
	must(qmt_verbs_answer_encode(&answer, &again) == QMLA_OK);
	must(again.length == blob->length && memcmp(again.bytes, blob->bytes, blob->length) == 0);
}

static void try_message(const uint8_t *data, size_t size)
{
	uint8_t again[QMT_MESSAGE_BYTES];
	struct qmt_message message;

	if (qmt_message_decode(data, size, &message) != QMLA_OK)
		return;
	qmt_message_encode(&message, again);
	must(memcmp(again, data, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct qmt_offer blob;

	if (size < 1 || size - 1 > sizeof(blob.bytes))
		return 0;
	memcpy(blob.bytes, data + 1, size - 1);
	blob.length = (uint32_t)(size - 1);
	switch (data[0] % 3) {
	case 0:
		try_offer(&blob);
		break;
	case 1:
		try_answer(&blob);
		break;
	default:
		try_message(data + 1, size - 1);
		break;
	}
	return 0;
}
