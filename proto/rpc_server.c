/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_server.h"

#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>

#include "common/log.h"
#include "proto/health.h"
#include "proto/rpc_listen.h"
#include "proto/rpc_runtime.h"
#include "proto/rpc_server_private.h"
#include "proto/rpc_tls.h"

#define DEFAULT_THREADS       4
#define DEFAULT_MESSAGE_BYTES (1u << 20)
#define DEFAULT_UNPACK_FACTOR 16
#define DEFAULT_QUEUED_CALLS  1024
/* Waiting calls may hold as many bytes as this many messages of the largest size. */
#define QUEUED_MESSAGES 64
#define MAX_THREADS     1024
/* Armed requests a method: a burst of two finds both waiting. */
#define ARMED             2
#define METADATA_BYTES    8192
#define STREAMS_MAX       1024
#define HANDSHAKE_MS      10000
#define PING_INTERVAL_MS  900 /* clients may ping once a second, with or without data */
#define KEEPALIVE_MS      20000
#define KEEPALIVE_WAIT_MS 10000
#define COMPLAIN_NS       (5 * QMC_NS_PER_S)

static grpc_arg arg_integer(const char *key, int value)
{
	return (grpc_arg){
		.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static grpc_server *handle_create(const struct qmp_server *server)
{
	grpc_arg list[] = {
		/* With it two servers share a port in silence. */
		arg_integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
		arg_integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)server->max_message_bytes),
		arg_integer(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES),
		arg_integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS_MAX),
		arg_integer(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS),
		/* What clients may do (the default floor is five minutes) … */
		arg_integer(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
			    PING_INTERVAL_MS),
		arg_integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
		/* … and how a client that vanished with an open stream is noticed. */
		arg_integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
		arg_integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_WAIT_MS),
		arg_integer(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
	};
	grpc_channel_args args = {sizeof(list) / sizeof(list[0]), list};

	return grpc_server_create(&args, NULL);
}

static void bind_complain(const char *text, qmla_status_t status)
{
	qmc_error("rpc", "cannot listen on %s: %s", text, qmc_listen_reason(status));
}

/* Binds to @p text and to nothing less. */
static qmla_status_t handle_bind(grpc_server *handle, const char *text,
				 const struct qmc_address *address,
				 grpc_server_credentials *credentials, uint16_t *bound)
{
	qmla_status_t status = qmp_listen_probe(address);
	int port = 0;

	if (status == QMLA_OK) {
		port = grpc_server_add_http2_port(handle, text, credentials);
		if (port <= 0)
			status = QMLA_ERR_UNAVAILABLE;
	}
	if (status == QMLA_OK)
		*bound = (uint16_t)port;
	else
		bind_complain(text, status);
	return status;
}

static qmla_status_t server_bind(struct qmp_server *server, const struct qmp_server_config *config)
{
	char text[QMC_ADDRESS_TEXT_MAX];
	grpc_server_credentials *credentials;
	struct qmc_address address;
	qmla_status_t status;

	status = config->listen ? qmc_address_parse(config->listen, &address)
				: QMLA_ERR_INVALID_ARGUMENT;
	if (status != QMLA_OK) {
		qmc_error("rpc", "listen address \"%s\" is not host:port, [v6]:port or a port",
			  config->listen ? config->listen : "");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = qmp_server_credentials_create(config->tls, &credentials);
	if (status != QMLA_OK)
		return status;
	qmc_address_format(&address, text);
	status = handle_bind(server->handle, text, &address, credentials, &server->port);
	grpc_server_credentials_release(credentials);
	return status;
}

static qmla_status_t binding_register(struct qmp_server *server, const struct qmp_method *method,
				      void *object, bool on_queue)
{
	struct qmp_binding *binding = &server->bindings[server->binding_count];

	*binding = (struct qmp_binding){
		.method = method, .object = object, .on_queue = on_queue, .server = server};
	binding->registered = grpc_server_register_method(
		server->handle, method->path, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
	if (!binding->registered) {
		qmc_error("rpc", "method %s cannot be registered: is it there twice?",
			  method->path);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	server->binding_count++;
	return QMLA_OK;
}

static qmla_status_t server_register(struct qmp_server *server, const struct qmp_service *services,
				     size_t count)
{
	size_t total = QMP_HEALTH_METHODS + 1;
	qmla_status_t status = QMLA_OK;

	for (size_t i = 0; i < count; i++)
		total += services[i].count;
	server->bindings = calloc(total, sizeof(*server->bindings));
	if (!server->bindings)
		return QMLA_ERR_NO_MEMORY;
	for (size_t i = 0; i < count; i++) {
		for (size_t j = 0; j < services[i].count && status == QMLA_OK; j++)
			status = binding_register(server, &services[i].methods[j],
						  services[i].object, false);
	}
	for (size_t j = 0; j < QMP_HEALTH_METHODS && status == QMLA_OK; j++)
		status = binding_register(server, &qmp_health_methods[j], server->health, true);
	/* The last one takes every other method, to answer that it is unknown: without
	 * it such a call would wait for its deadline. */
	server->bindings[server->binding_count++] = (struct qmp_binding){.server = server};
	return status;
}

static void server_on_down(struct qmp_tag *tag, bool ok)
{
	struct qmp_server *server =
		(struct qmp_server *)(void *)((char *)tag - offsetof(struct qmp_server, shut_down));

	(void)ok;
	pthread_mutex_lock(&server->lock);
	server->down = true;
	pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
}

static void server_tick(void *argument)
{
	struct qmp_server *server = argument;

	pthread_mutex_lock(&server->lock);
	for (struct qmp_call *call = server->calls; call; call = call->next)
		qmp_call_expire(call);
	pthread_mutex_unlock(&server->lock);
	/* Memory was out when a request should have been armed: try again. */
	for (size_t i = 0; i < server->binding_count; i++) {
		struct qmp_binding *binding = &server->bindings[i];

		while (binding->missing && qmp_call_arm(binding))
			binding->missing--;
	}
}

/* Waits until gRPC is down and no call is left, or until @p deadline. */
static bool server_wait_down(struct qmp_server *server, qmc_time_t deadline)
{
	bool in_time = true;
	bool down;

	pthread_mutex_lock(&server->lock);
	while ((!server->down || server->live) && in_time)
		in_time = qmp_condition_wait(&server->changed, &server->lock, deadline);
	down = server->down && !server->live;
	pthread_mutex_unlock(&server->lock);
	return down;
}

static void server_complain(struct qmp_server *server)
{
	pthread_mutex_lock(&server->lock);
	for (struct qmp_call *call = server->calls; call; call = call->next) {
		if (call->handle && call->binding->method)
			qmc_warn("rpc", "shutdown waits for the handler of %s",
				 call->binding->method->path);
	}
	pthread_mutex_unlock(&server->lock);
}

static void server_stop(struct qmp_server *server, int64_t grace_ns)
{
	/* Release pairs with the acquire in qmp_call_draining. */
	atomic_store_explicit(&server->draining, true, memory_order_release);
	qmp_health_stop(server->health);
	QMP_HAND_OVER(&server->shut_down);
	grpc_server_shutdown_and_notify(server->handle, qmp_queue_handle(server->queue),
					&server->shut_down);
	if (server_wait_down(server, qmc_clock_after(grace_ns)))
		return;
	grpc_server_cancel_all_calls(server->handle);
	while (!server_wait_down(server, qmc_clock_after(COMPLAIN_NS)))
		server_complain(server);
}

/* gRPC wants a server shut down before it is destroyed, even one that never started. */
static void server_abandon(struct qmp_server *server)
{
	QMP_HAND_OVER(&server->shut_down);
	grpc_server_shutdown_and_notify(server->handle, qmp_queue_handle(server->queue),
					&server->shut_down);
	(void)server_wait_down(server, QMC_TIME_NEVER);
}

/* Frees what there is; calls are gone or were never armed. */
static void server_free(struct qmp_server *server)
{
	qmp_pool_destroy(server->pool);
	if (server->handle)
		grpc_server_destroy(server->handle);
	qmp_queue_destroy(server->queue);
	qmp_health_destroy(server->health);
	free(server->bindings);
	pthread_cond_destroy(&server->changed);
	pthread_mutex_destroy(&server->lock);
	free(server);
	qmp_runtime_put();
}

static qmla_status_t server_prepare(struct qmp_server *server,
				    const struct qmp_server_config *config,
				    const struct qmp_service *services, size_t count)
{
	uint32_t threads = config->threads ? config->threads : DEFAULT_THREADS;
	qmla_status_t status;

	if (threads > MAX_THREADS || server->max_message_bytes > INT32_MAX) {
		qmc_error("rpc", "at most %u threads and messages under 2 GiB", MAX_THREADS);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	server->handle = handle_create(server);
	status = qmp_queue_create("qmp-server", server_tick, server, &server->queue);
	if (status != QMLA_OK)
		return status;
	grpc_server_register_completion_queue(server->handle, qmp_queue_handle(server->queue),
					      NULL);
	status = qmp_health_create(services, count, &server->health);
	if (status == QMLA_OK)
		status = server_register(server, services, count);
	if (status == QMLA_OK)
		status = qmp_pool_create(threads, server->max_queued_calls, &server->pool);
	if (status == QMLA_OK)
		status = server_bind(server, config);
	return status;
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
	return value ? value : otherwise;
}

static struct qmp_server *server_alloc(const struct qmp_server_config *config)
{
	struct qmp_server *server = calloc(1, sizeof(*server));
	uint64_t unpack;

	if (!server)
		return NULL;
	server->max_message_bytes = or_default(config->max_message_bytes, DEFAULT_MESSAGE_BYTES);
	unpack = (uint64_t)server->max_message_bytes * DEFAULT_UNPACK_FACTOR;
	server->max_unpack_bytes = or_default(config->max_unpack_bytes,
					      unpack > UINT32_MAX ? UINT32_MAX : (uint32_t)unpack);
	server->max_queued_calls = or_default(config->max_queued_calls, DEFAULT_QUEUED_CALLS);
	server->max_queued_bytes = (size_t)server->max_message_bytes * QUEUED_MESSAGES;
	server->shut_down.done = server_on_down;
	pthread_mutex_init(&server->lock, NULL);
	qmp_condition_init(&server->changed);
	return server;
}

qmla_status_t qmp_server_create(const struct qmp_server_config *config,
				const struct qmp_service *services, size_t count,
				struct qmp_server **server)
{
	struct qmp_server *s = server_alloc(config);
	qmla_status_t status;
	bool armed = true;

	if (!s)
		return QMLA_ERR_NO_MEMORY;
	qmp_runtime_get();
	status = server_prepare(s, config, services, count);
	if (status != QMLA_OK) {
		if (s->queue)
			server_abandon(s);
		server_free(s);
		return status;
	}
	grpc_server_start(s->handle);
	for (size_t i = 0; i < s->binding_count; i++) {
		for (int j = 0; j < ARMED; j++)
			armed &= qmp_call_arm(&s->bindings[i]);
	}
	if (!armed) {
		qmp_server_destroy(s, 0);
		return QMLA_ERR_NO_MEMORY;
	}
	*server = s;
	return QMLA_OK;
}

uint16_t qmp_server_port(const struct qmp_server *server)
{
	return server->port;
}

void qmp_server_set_serving(struct qmp_server *server, bool serving)
{
	qmp_health_set(server->health, serving);
}

void qmp_server_destroy(struct qmp_server *server, int64_t grace_ns)
{
	if (!server)
		return;
	server_stop(server, grace_ns);
	server_free(server);
}
