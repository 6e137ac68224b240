/* SPDX-License-Identifier: Apache-2.0 */
/* A connection that gRPC takes for failed although it was under way: see rpc_client_call.c. */
#include "cmocka_all.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

#include "fixture.h"

static _Atomic int misread; /* how many connections more end with an errno that is not theirs */
static _Atomic int attempts;

/* Stands before libc's, for libgrpc as well. */
int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t length)
{
	int (*real)(int, const struct sockaddr *, socklen_t);
	sa_family_t family = to.__sockaddr__->sa_family;
	int rc;

	*(void **)&real = dlsym(RTLD_NEXT, "connect");
	rc = real(fd, to.__sockaddr__, length);
	if (family != AF_INET && family != AF_INET6)
		return rc;
	attempts++;
	if (misread > 0 && rc < 0 && errno == EINPROGRESS) {
		misread--;
		errno = ENOENT;
	}
	return rc;
}

static qmla_status_t echo(struct qmp_channel *channel, int64_t timeout_ns, uint32_t *length)
{
	Qmla__V1__LookupRequest request = QMLA__V1__LOOKUP_REQUEST__INIT;
	ProtobufCBinaryData key = {5, (uint8_t *)(uintptr_t) "apple"};
	ProtobufCMessage *response;
	qmla_status_t status;

	request.n_keys = 1;
	request.keys = &key;
	status = qmp_channel_call(channel, "/test.Unary/Echo", &request.base,
				  &qmla__v1__lookup_response__descriptor,
				  qmc_clock_after(timeout_ns), &response, NULL);
	if (status != QMLA_OK)
		return status;
	*length = (uint32_t)((Qmla__V1__LookupResponse *)response)->entries[0]->length;
	qmp_message_free(response);
	return QMLA_OK;
}

static void is_made_again(void **state)
{
	struct fixture fixture = {0};
	uint32_t length = 0;

	(void)state;
	fixture_start(&fixture, &(struct qmp_server_config){0});
	misread = 1;
	assert_int_equal(echo(fixture.channel, MS(3000), &length), QMLA_OK);
	assert_int_equal(length, 5); /* the second attempt sent the whole request */
	assert_int_equal(misread, 0);
	fixture_stop(&fixture, 0);
}

static void ends_with_the_deadline(void **state)
{
	struct fixture fixture = {0};
	uint32_t length = 0;

	(void)state;
	fixture_start(&fixture, &(struct qmp_server_config){0});
	misread = 1000;
	attempts = 0;
	assert_int_equal(echo(fixture.channel, MS(400), &length), QMLA_ERR_DEADLINE);
	assert_in_range(attempts, 2, 20); /* with back-off between them */
	misread = 0;
	fixture_stop(&fixture, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_made_again),
		cmocka_unit_test(ends_with_the_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
