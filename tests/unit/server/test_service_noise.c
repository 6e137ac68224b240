/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every method is called with requests whose every field is random, of its own
 * type and of the others': lengths, counts, codes, leases and tickets that never
 * were. Each call is answered, the node stays sound, and goes on working.
 */
#include "cmocka_first.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "node_fixture.h"
#include "store/support.h"

#define CALLS 4000

static const struct {
	const char *method;
	const ProtobufCMessageDescriptor *request, *response;
} methods[] = {
#define METHOD(name, lower)                                                                        \
	{                                                                                          \
		name, &qmla__v1__##lower##_request__descriptor,                                    \
			&qmla__v1__##lower##_response__descriptor                                  \
	}
	METHOD("Describe", describe), METHOD("Connect", connect), METHOD("Lookup", lookup),
	METHOD("Renew", renew),       METHOD("Release", release), METHOD("Reserve", reserve),
	METHOD("Commit", commit),     METHOD("Abort", abort),     METHOD("Remove", remove),
	METHOD("Report", report),     METHOD("Pin", pin),         METHOD("Unpin", unpin),
	METHOD("Stats", stats),
#undef METHOD
};

#define METHODS (sizeof(methods) / sizeof(methods[0]))

static struct node node;
static uint64_t seed = 20261130;

static uint64_t below(uint64_t limit)
{
	return random_next(&seed) % limit;
}

/* Numbers that matter more often than others. */
static uint64_t number(void)
{
	static const uint64_t special[] = {0,          1,          2,         16,       64,
					   UINT32_MAX, UINT64_MAX, INT64_MAX, 1u << 31, 300};

	if (below(3) == 0)
		return node.incarnation; /* past the first check */
	return below(3) ? special[below(sizeof(special) / sizeof(special[0]))] : random_next(&seed);
}

static void fill_bytes(ProtobufCBinaryData *data)
{
	static const size_t lengths[] = {0, 1, 15, 16, 16, 16, 17, 31, 32, 32, 33, 200};

	data->len = lengths[below(sizeof(lengths) / sizeof(lengths[0]))];
	data->data = calloc(1, data->len + 1);
	if (below(2) && data->len == 32)
		memcpy(data->data, node.identity.bytes, 32);
	else if (data->len > 0)
		data->data[0] = (uint8_t)below(8);
}

static ProtobufCMessage *make(const ProtobufCMessageDescriptor *type);

static void fill_one(const ProtobufCFieldDescriptor *field, void *at)
{
	char *text;

	switch (field->type) {
	case PROTOBUF_C_TYPE_BYTES:
		fill_bytes(at);
		break;
	case PROTOBUF_C_TYPE_STRING:
		text = calloc(1, 100);
		memset(text, 'a', below(99));
		*(char **)at = text;
		break;
	case PROTOBUF_C_TYPE_MESSAGE:
		*(ProtobufCMessage **)at = make(field->descriptor);
		break;
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_UINT64:
		*(uint64_t *)at = number();
		break;
	case PROTOBUF_C_TYPE_BOOL:
		*(protobuf_c_boolean *)at = (protobuf_c_boolean)below(2);
		break;
	default:
		*(uint32_t *)at = (uint32_t)number();
	}
}

static size_t size_of(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	case PROTOBUF_C_TYPE_BOOL:
		return sizeof(protobuf_c_boolean);
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_MESSAGE:
		return 8;
	default:
		return 4;
	}
}

static ProtobufCMessage *make(const ProtobufCMessageDescriptor *type)
{
	char *message = calloc(1, type->sizeof_message);

	type->message_init((ProtobufCMessage *)(void *)message);
	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];

		if (below(4) == 0)
			continue; /* left out */
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			size_t count = below(5);
			char *list = calloc(count + 1, size_of(field->type));

			for (size_t k = 0; k < count; k++)
				fill_one(field, list + k * size_of(field->type));
			*(size_t *)(void *)(message + field->quantifier_offset) = count;
			*(void **)(void *)(message + field->offset) = list;
		} else {
			fill_one(field, message + field->offset);
		}
	}
	return (ProtobufCMessage *)(void *)message;
}

static void random_requests_are_answered(void **state)
{
	struct qms_service_config config = node_config();
	uint64_t ok = 0, refused = 0;
	char why[256] = "";

	(void)state;
	assert_true(node_start(&node, &config));
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	for (int i = 0; i < CALLS; i++) {
		size_t method = below(METHODS);
		/* Mostly of the right type; else bytes that mean something else. */
		size_t type = below(8) ? method : below(METHODS);
		ProtobufCMessage *request = make(methods[type].request), *response;
		qmla_status_t status = node_call(&node, methods[method].method, request,
						 methods[method].response, &response);

		assert_int_not_equal(status, QMLA_ERR_DEADLINE);
		assert_int_not_equal(status, QMLA_ERR_UNAVAILABLE);
		assert_int_not_equal(status, QMLA_ERR_INTERNAL);
		ok += status == QMLA_OK;
		refused += status != QMLA_OK;
		if (response)
			qmp_message_free(response);
		protobuf_c_message_free_unpacked(request, NULL);
	}
	qmc_log_configure(QMC_LOG_INFO, QMC_LOG_TEXT);
	print_message("%llu calls answered, %llu refused\n", (unsigned long long)ok,
		      (unsigned long long)refused);
	assert_true(ok > CALLS / 20);
	assert_true(refused > CALLS / 20);
	qms_store_expire(qms_service_store(node.service),
			 qmc_clock_now() + 48 * 3600 * QMC_NS_PER_S);
	if (!qms_store_check(qms_service_store(node.service), why, sizeof(why)))
		fail_msg("%s", why);
	memset(node.identity.bytes, 0x77, 32);
	assert_int_equal(node_connect(&node, "tcp"), QMLA_OK);
	assert_int_equal(node_put(&node, 1000), QMLA__V1__CODE__CODE_OK);
	node_stop(&node);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_requests_are_answered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
