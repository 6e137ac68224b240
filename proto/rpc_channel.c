/* SPDX-License-Identifier: Apache-2.0 */
#include <grpc/grpc_security.h>
#include <stdlib.h>

#include "common/address.h"
#include "common/log.h"
#include "proto/rpc_client_call.h"
#include "proto/rpc_runtime.h"
#include "proto/rpc_tls.h"

#define DEFAULT_MESSAGE_BYTES (4u << 20)
#define UNPACK_FACTOR         16
#define DEFAULT_KEEPALIVE_NS  (10 * QMC_NS_PER_S)
#define MIN_KEEPALIVE_NS      QMC_NS_PER_S /* what qmp_server permits */
#define METADATA_BYTES        8192
/* A restarted node is tried again within half a second; one that takes the
 * connection but does not speak costs two. */
#define BACKOFF_FIRST_MS    100
#define BACKOFF_MAX_MS      500
#define CONNECT_TIMEOUT_MS  2000
#define RESOLVE_INTERVAL_MS 1000

static grpc_arg arg_integer(const char *key, int value)
{
	return (grpc_arg){
		.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static grpc_channel *handle_create(const char *target, grpc_channel_credentials *credentials,
				   uint32_t max_message_bytes, int64_t keepalive_ns)
{
	int keepalive_ms = (int)(keepalive_ns / QMC_NS_PER_MS);
	grpc_arg list[] = {
		/* Reserve and Commit must not be sent twice, nor copies of them be kept. */
		arg_integer(GRPC_ARG_ENABLE_RETRIES, 0),
		/* No variable of the environment may redirect cache traffic. */
		arg_integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
		/* Each channel is a connection of its own. */
		arg_integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
		arg_integer(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
		arg_integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)max_message_bytes),
		arg_integer(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES),
		/* By default pings stop after two on an idle stream, and a stopped peer
		 * is then never noticed. */
		arg_integer(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms),
		arg_integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms / 3),
		arg_integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
		arg_integer(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
		arg_integer(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, BACKOFF_FIRST_MS),
		arg_integer(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, BACKOFF_MAX_MS),
		arg_integer(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_TIMEOUT_MS),
		/* A node that comes back under another address is found again, too. */
		arg_integer(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, RESOLVE_INTERVAL_MS),
	};
	grpc_channel_args args = {sizeof(list) / sizeof(list[0]), list};

	return grpc_channel_create(target, credentials, &args);
}

static qmla_status_t config_check(const struct qmp_channel_config *config, char *target)
{
	struct qmc_address address;

	/* Parsed and written again, so that no other gRPC scheme gets through. */
	if (!config->target || qmc_address_parse(config->target, &address) != QMLA_OK ||
	    address.port == 0 || address.host[0] == '\0') {
		qmc_error("rpc", "peer address \"%s\" is not host:port or [v6]:port",
			  config->target ? config->target : "");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (config->max_message_bytes > INT32_MAX) {
		qmc_error("rpc", "messages of %u bytes: the limit must be under 2 GiB",
			  config->max_message_bytes);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	qmc_address_format(&address, target);
	return QMLA_OK;
}

static int64_t keepalive_of(const struct qmp_channel_config *config)
{
	int64_t ns = config->keepalive_ns ? config->keepalive_ns : DEFAULT_KEEPALIVE_NS;

	if (ns < MIN_KEEPALIVE_NS)
		return MIN_KEEPALIVE_NS;
	return ns < INT32_MAX * QMC_NS_PER_MS ? ns : INT32_MAX * QMC_NS_PER_MS;
}

qmla_status_t qmp_channel_create(const struct qmp_channel_config *config,
				 struct qmp_channel **channel)
{
	char target[QMC_ADDRESS_TEXT_MAX];
	grpc_channel_credentials *credentials;
	uint32_t max_bytes =
		config->max_message_bytes ? config->max_message_bytes : DEFAULT_MESSAGE_BYTES;
	struct qmp_channel *c;
	qmla_status_t status = config_check(config, target);

	if (status != QMLA_OK)
		return status;
	c = calloc(1, sizeof(*c));
	if (!c)
		return QMLA_ERR_NO_MEMORY;
	qmp_runtime_get();
	status = qmp_channel_credentials_create(config->tls, &credentials);
	if (status != QMLA_OK)
		goto err_runtime;
	status = qmp_queue_shared_get(&c->queue);
	if (status != QMLA_OK)
		goto err_credentials;
	c->handle = handle_create(target, credentials, max_bytes, keepalive_of(config));
	grpc_channel_credentials_release(credentials);
	c->unpack_budget = (size_t)max_bytes * UNPACK_FACTOR;
	c->references = 1;
	pthread_mutex_init(&c->lock, NULL);
	qmp_condition_init(&c->changed);
	*channel = c;
	return QMLA_OK;

err_credentials:
	grpc_channel_credentials_release(credentials);
err_runtime:
	qmp_runtime_put();
	free(c);
	return status;
}

void qmp_channel_put(struct qmp_channel *channel)
{
	bool last;

	pthread_mutex_lock(&channel->lock);
	last = --channel->references == 0;
	pthread_mutex_unlock(&channel->lock);
	if (!last)
		return;
	pthread_cond_destroy(&channel->changed);
	pthread_mutex_destroy(&channel->lock);
	free(channel);
	qmp_queue_shared_put();
	qmp_runtime_put();
}

void qmp_channel_destroy(struct qmp_channel *channel)
{
	if (!channel)
		return;
	pthread_mutex_lock(&channel->lock);
	channel->closed = true;
	for (struct qmp_client_call *call = channel->calls; call; call = call->next)
		qmp_client_call_cancel(call);
	while (channel->calls)
		pthread_cond_wait(&channel->changed, &channel->lock);
	pthread_mutex_unlock(&channel->lock);
	grpc_channel_destroy(channel->handle);
	qmp_channel_put(channel);
}
