/* SPDX-License-Identifier: Apache-2.0 */
/* Offers, answers and messages, to and fro; and whatever is not one is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/verbs/message.h"

static struct qmt_qp_address address(uint32_t seed)
{
	struct qmt_qp_address made = {.qpn = seed,
				      .psn = 0xfffffe - seed,
				      .lid = (uint16_t)(seed + 1),
				      .mtu = IBV_MTU_4096,
				      .reads_served = 16,
				      .reads_started = 8,
				      .ethernet = seed % 2};

	memset(made.gid.raw, (int)seed, sizeof(made.gid.raw));
	return made;
}

static struct qmt_verbs_offer sample_offer(void)
{
	struct qmt_verbs_offer offer = {.server = {.kind = QMT_KIND_VERBS, .incarnation = 77},
					.rails = 2};

	memset(offer.server.cookie, 3, sizeof(offer.server.cookie));
	memset(offer.connection, 4, sizeof(offer.connection));
	offer.addresses[0] = address(5);
	offer.addresses[1] = address(6);
	return offer;
}

static struct qmt_verbs_answer sample_answer(void)
{
	struct qmt_verbs_answer answer = {.incarnation = 77,
					  .region = 3,
					  .bytes = 5000,
					  .base = 0x7f0000000000,
					  .chunk_bytes = 2048,
					  .chunks = 3,
					  .write_mode = QMT_WRITE_PULL,
					  .write_depth = 16,
					  .rails = 2};

	for (size_t i = 0; i < 2; i++) {
		answer.rail[i].offered = (uint16_t)(1 - i);
		answer.rail[i].address = address((uint32_t)(9 + i));
		for (uint32_t c = 0; c < 3; c++)
			answer.rail[i].rkeys[c] = 1000 * (uint32_t)i + c;
	}
	return answer;
}

static bool same(const struct qmt_qp_address *a, const struct qmt_qp_address *b)
{
	return a->qpn == b->qpn && a->psn == b->psn && a->lid == b->lid && a->mtu == b->mtu &&
	       a->reads_served == b->reads_served && a->reads_started == b->reads_started &&
	       a->ethernet == b->ethernet && memcmp(&a->gid, &b->gid, sizeof(a->gid)) == 0;
}

static void an_offer_comes_through(void **state)
{
	const struct qmt_verbs_offer sent = sample_offer();
	struct qmt_verbs_offer got;
	struct qmt_offer blob;

	(void)state;
	qmt_verbs_offer_encode(&sent, &blob);
	assert_int_equal(blob.length, 48 + 2 * 32);
	assert_int_equal(qmt_verbs_offer_decode(&blob, &got), QMLA_OK);
	assert_int_equal(got.rails, 2);
	assert_int_equal(got.server.incarnation, 77);
	assert_memory_equal(got.server.cookie, sent.server.cookie, QMT_COOKIE_BYTES);
	assert_memory_equal(got.connection, sent.connection, QMT_CONNECTION_BYTES);
	assert_true(same(&got.addresses[0], &sent.addresses[0]));
	assert_true(same(&got.addresses[1], &sent.addresses[1]));
}

static void an_answer_comes_through(void **state)
{
	const struct qmt_verbs_answer sent = sample_answer();
	struct qmt_verbs_answer got;
	struct qmt_offer blob;

	(void)state;
	assert_int_equal(qmt_verbs_answer_encode(&sent, &blob), QMLA_OK);
	assert_int_equal(blob.length, 72 + 2 * (36 + 3 * 4));
	assert_int_equal(qmt_verbs_answer_decode(&blob, &got), QMLA_OK);
	assert_int_equal(got.base, sent.base);
	assert_int_equal(got.bytes, 5000);
	assert_int_equal(got.chunks, 3);
	assert_int_equal(got.write_mode, QMT_WRITE_PULL);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(got.rail[i].offered, sent.rail[i].offered);
		assert_true(same(&got.rail[i].address, &sent.rail[i].address));
		assert_memory_equal(got.rail[i].rkeys, sent.rail[i].rkeys, 12);
	}
}

/* What any peer on the control plane may send: nothing but a status comes of it. */
static void cut_and_bent_blobs_are_refused(void **state)
{
	struct qmt_verbs_answer answer = sample_answer(), got;
	struct qmt_verbs_offer offer = sample_offer(), got_offer;
	struct qmt_offer good, bad;

	(void)state;
	qmt_verbs_offer_encode(&offer, &good);
	for (uint32_t length = 0; length < good.length; length++) {
		bad = good;
		bad.length = length;
		assert_int_not_equal(qmt_verbs_offer_decode(&bad, &got_offer), QMLA_OK);
	}
	bad = good;
	bad.bytes[6] = 5; /* rails */
	assert_int_equal(qmt_verbs_offer_decode(&bad, &got_offer), QMLA_ERR_FORMAT);
	bad = good;
	bad.bytes[51] = 1; /* a queue pair number of more than 24 bits */
	assert_int_equal(qmt_verbs_offer_decode(&bad, &got_offer), QMLA_ERR_FORMAT);
	bad = good;
	bad.bytes[48 + 26] = 9; /* mtu */
	assert_int_equal(qmt_verbs_offer_decode(&bad, &got_offer), QMLA_ERR_FORMAT);
	bad = good;
	bad.bytes[4] = 2; /* version */
	assert_int_equal(qmt_verbs_offer_decode(&bad, &got_offer), QMLA_ERR_UNSUPPORTED);

	assert_int_equal(qmt_verbs_answer_encode(&answer, &good), QMLA_OK);
	for (uint32_t length = 0; length < good.length; length++) {
		bad = good;
		bad.length = length;
		assert_int_not_equal(qmt_verbs_answer_decode(&bad, &got), QMLA_OK);
	}
	answer.chunk_bytes = 0;
	assert_int_equal(qmt_verbs_answer_encode(&answer, &bad), QMLA_OK);
	assert_int_equal(qmt_verbs_answer_decode(&bad, &got), QMLA_ERR_FORMAT);
	answer = sample_answer();
	answer.chunks = 2; /* do not cover the region */
	assert_int_equal(qmt_verbs_answer_encode(&answer, &bad), QMLA_OK);
	assert_int_equal(qmt_verbs_answer_decode(&bad, &got), QMLA_ERR_FORMAT);
	answer = sample_answer();
	answer.base = UINT64_MAX - 100; /* wraps */
	assert_int_equal(qmt_verbs_answer_encode(&answer, &bad), QMLA_OK);
	assert_int_equal(qmt_verbs_answer_decode(&bad, &got), QMLA_ERR_FORMAT);
	answer = sample_answer();
	answer.rail[1].offered = 1; /* one rail twice */
	assert_int_equal(qmt_verbs_answer_encode(&answer, &bad), QMLA_OK);
	assert_int_equal(qmt_verbs_answer_decode(&bad, &got), QMLA_ERR_FORMAT);
	answer = sample_answer();
	answer.chunks = QMT_CHUNKS_MAX + 1;
	assert_int_equal(qmt_verbs_answer_encode(&answer, &bad), QMLA_ERR_TOO_LARGE);
}

static void messages_come_through_or_are_refused(void **state)
{
	struct qmt_message sent = {.kind = QMT_MESSAGE_PULL,
				   .status = QMLA_ERR_CANCELLED,
				   .id = UINT64_MAX - 1,
				   .region = 7,
				   .offset = 1,
				   .length = 2,
				   .address = 0xabcdef,
				   .rkeys = {1, 2, 3, 4}},
			   got;
	uint8_t bytes[QMT_MESSAGE_BYTES], bad[QMT_MESSAGE_BYTES];

	(void)state;
	memset(sent.capability, 0x5a, sizeof(sent.capability));
	qmt_message_encode(&sent, bytes);
	assert_int_equal(qmt_message_decode(bytes, sizeof(bytes), &got), QMLA_OK);
	assert_int_equal(got.kind, sent.kind);
	assert_int_equal(got.status, sent.status);
	assert_int_equal(got.id, sent.id);
	assert_int_equal(got.address, sent.address);
	assert_memory_equal(got.rkeys, sent.rkeys, sizeof(sent.rkeys));
	assert_memory_equal(got.capability, sent.capability, sizeof(sent.capability));
	assert_int_equal(qmt_message_decode(bytes, sizeof(bytes) - 1, &got), QMLA_ERR_FORMAT);
	for (int kind = 0; kind < 256; kind++) {
		memcpy(bad, bytes, sizeof(bad));
		bad[0] = (uint8_t)kind;
		assert_int_equal(qmt_message_decode(bad, sizeof(bad), &got),
				 kind >= 1 && kind <= 9 ? QMLA_OK : QMLA_ERR_FORMAT);
	}
	memcpy(bad, bytes, sizeof(bad));
	bad[4] = 100; /* a status that nobody knows */
	assert_int_equal(qmt_message_decode(bad, sizeof(bad), &got), QMLA_ERR_FORMAT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_offer_comes_through),
		cmocka_unit_test(an_answer_comes_through),
		cmocka_unit_test(cut_and_bent_blobs_are_refused),
		cmocka_unit_test(messages_come_through_or_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
