/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "client/worker/decode_service.h"
#include "client/worker/options.h"
#include "client/worker/prefill_service.h"
#include "client/worker/signals.h"
#include "client/worker/stats_service.h"
#include "client/worker/worker.h"
#include "common/http_endpoint.h"
#include "common/log.h"
#include "common/port_file.h"
#include "proto/rpc_keeper.h"
#include "qmla/v1/worker.pb-c.h"

#define COMPONENT        "worker"
#define MAX_MESSAGE      (4u << 20)
#define SPARE_THREADS    4 /* WorkerStats, and refusing what is too much */
#define FLUSH_TIMEOUT_NS (5 * QMC_NS_PER_S)
#define STOP_SECONDS     30 /* beyond the drain and the flush: then the process is stuck */

/* The servers come up before the model is loaded: a taken port shows at once, and health is asked.
 */
struct process {
	struct qmw_flags flags;
	struct qmw_worker_config config;
	_Atomic(struct qmw_worker *) worker; /* NULL while loading and while ending */
	struct qmp_keeper *server;
	struct qmc_http_endpoint *http;
	struct qmc_port_file *port_file;
	bool published; /* the port file */
	_Atomic bool ready;
	pthread_t loader;
	_Atomic bool loaded;
	qmla_status_t load_status; /* the loader's until `loaded` */
};

/* Acquire pairs with the release in load_thread: the worker is whole before it is seen. */
static struct qmw_worker *loaded(struct process *process)
{
	return atomic_load_explicit(&process->worker, memory_order_acquire);
}

static void forward(void *service, struct qmp_call *call, const ProtobufCMessage *request,
		    qmp_handler_func_t handler)
{
	struct qmw_worker *worker = loaded(service);

	if (worker)
		handler(worker, call, request);
	else
		qmp_call_fail(call, QMLA_ERR_UNAVAILABLE, "the model is still being loaded");
}

static void on_generate(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	forward(service, call, request, qmw_decode_generate);
}

static void on_prefill(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	forward(service, call, request, qmw_prefill_prefill);
}

static void on_stats(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	forward(service, call, request, qmw_stats_worker_stats);
}

static void on_other_role(void *service, struct qmp_call *call, const ProtobufCMessage *request)
{
	struct process *process = service;

	(void)request;
	qmp_call_fail(call, QMLA_ERR_UNSUPPORTED, "this is a %s worker: %s",
		      qmw_role_name(process->config.role),
		      process->config.role == QMW_ROLE_DECODE ? "ask a prefill worker"
							      : "ask a decode worker");
}

static qmla_status_t start_rpc(struct process *process)
{
	static struct qmp_method methods[3];
	static struct qmp_service service = {.methods = methods, .count = 3};
	bool decode = process->config.role == QMW_ROLE_DECODE;
	struct qmp_keeper_config config = {
		.server = {.listen = process->flags.listen ? process->flags.listen
				     : decode              ? "127.0.0.1:7200"
							   : "127.0.0.1:7100",
			   .threads = qmw_worker_limit(&process->config) + SPARE_THREADS,
			   .max_message_bytes = MAX_MESSAGE,
			   .tls = process->config.tls},
		.services = &service,
		.count = 1,
		.grace_ns = process->flags.drain_timeout, /* answers are streams that last */
	};

	methods[0] = (struct qmp_method){"/qmla.v1.Worker/Generate", QMP_SERVER_STREAM,
					 &qmla__v1__generate_request__descriptor,
					 decode ? on_generate : on_other_role};
	methods[1] = (struct qmp_method){"/qmla.v1.Worker/Prefill", QMP_UNARY,
					 &qmla__v1__prefill_request__descriptor,
					 decode ? on_other_role : on_prefill};
	methods[2] = (struct qmp_method){"/qmla.v1.Worker/WorkerStats", QMP_UNARY,
					 &qmla__v1__worker_stats_request__descriptor, on_stats};
	service.object = process;
	return qmp_keeper_create(&config, &process->server);
}

static bool http_ready(void *user)
{
	struct process *process = user;

	return atomic_load_explicit(&process->ready, memory_order_relaxed);
}

static void http_metrics(void *user, FILE *out)
{
	struct qmw_worker *worker = loaded(user);

	if (worker)
		qmw_stats_write_metrics(worker, out);
}

static qmla_status_t start_http(struct process *process)
{
	struct qmc_http_endpoint_config config = {
		.listen = process->flags.http_listen,
		.ready = http_ready,
		.metrics = http_metrics,
		.user = process,
	};

	qmla_status_t status;

	if (!config.listen)
		return QMLA_OK;
	status = qmc_http_endpoint_create(&config, &process->http);
	if (status == QMLA_OK)
		qmc_info(COMPONENT, "health and metrics on port %u",
			 qmc_http_endpoint_port(process->http));
	return status;
}

static qmla_status_t publish_port(struct process *process)
{
	struct qmc_port_file_values values = {
		.grpc = qmp_keeper_port(process->server),
		.http = process->http ? qmc_http_endpoint_port(process->http) : 0,
	};
	qmla_status_t status;

	if (!process->port_file)
		return QMLA_OK;
	status = qmc_port_file_publish(process->port_file, &values);
	if (status == QMLA_OK) {
		process->published = true;
		qmw_signals_set_port_file(process->port_file);
	}
	return status;
}

static void set_ready(struct process *process, bool ready)
{
	atomic_store_explicit(&process->ready, ready, memory_order_relaxed);
	qmp_keeper_set_serving(process->server, ready);
}

static void *load_thread(void *argument)
{
	struct process *process = argument;
	struct qmw_worker *worker;

	process->load_status = qmw_worker_create(&process->config, &worker);
	if (process->load_status == QMLA_OK) {
		atomic_store_explicit(&process->worker, worker, memory_order_release);
		set_ready(process, true);
		qmc_info(COMPONENT, "%s worker serves on port %u, nodes: %s",
			 qmw_role_name(process->config.role), qmp_keeper_port(process->server),
			 process->config.nodes ? process->config.nodes : "none");
	}
	/* Release: who sees it may read load_status. */
	atomic_store_explicit(&process->loaded, true, memory_order_release);
	qmw_signals_wake();
	return NULL;
}

static void say_end(const struct process *process)
{
	qmc_info(COMPONENT,
		 "ending: running requests may take %lld s more; a second signal ends the worker "
		 "at once",
		 (long long)(process->flags.drain_timeout / QMC_NS_PER_S));
}

/* A large model takes minutes; nothing is lost by ending in the middle of it. */
static qmla_status_t await_load(struct process *process)
{
	while (!atomic_load_explicit(&process->loaded, memory_order_acquire)) {
		enum qmw_signal signal = qmw_signals_next(-1);

		if (signal == QMW_SIGNAL_RELOAD)
			qmw_options_reload(&process->flags);
		if (signal == QMW_SIGNAL_END) {
			qmc_info(COMPONENT, "ended while loading the model");
			qmc_port_file_remove(process->port_file);
			pthread_detach(process->loader); /* nobody waits for it */
			_exit(0);
		}
	}
	pthread_join(process->loader, NULL);
	return process->load_status;
}

/* Until SIGTERM or SIGINT. */
static void wait_for_end(struct process *process)
{
	enum qmw_signal signal;

	while ((signal = qmw_signals_next(-1)) != QMW_SIGNAL_END) {
		if (signal == QMW_SIGNAL_RELOAD)
			qmw_options_reload(&process->flags);
	}
	say_end(process);
}

static void end_port_file(struct process *process)
{
	if (process->published)
		qmc_port_file_remove(process->port_file); /* not freed: a handler may look at it */
	else
		qmc_port_file_destroy(process->port_file);
}

static void end(struct process *process)
{
	struct qmw_worker *worker = loaded(process);

	end_port_file(process);
	if (worker)
		qmw_worker_drain(worker);
	if (process->server)
		set_ready(process, false);
	qmw_signals_end_after(
		(unsigned)((process->flags.drain_timeout + FLUSH_TIMEOUT_NS) / QMC_NS_PER_S) +
		STOP_SECONDS);
	/* Waits for running calls, then cancels them; no handler is inside after it. */
	qmp_keeper_destroy(process->server, process->flags.drain_timeout);
	qmc_http_endpoint_destroy(process->http);
	qmw_worker_destroy(worker, qmc_clock_after(FLUSH_TIMEOUT_NS));
}

/* What can be judged without the model, before anybody waits for it; then the servers. */
static qmla_status_t start(struct process *process)
{
	qmla_status_t status = qmw_worker_check(&process->config);

	if (status == QMLA_OK && process->flags.port_file)
		status = qmc_port_file_create(process->flags.port_file, &process->port_file);
	if (status == QMLA_OK)
		status = start_rpc(process);
	if (status == QMLA_OK)
		status = start_http(process);
	if (status == QMLA_OK)
		status = publish_port(process);
	if (status == QMLA_OK && pthread_create(&process->loader, NULL, load_thread, process)) {
		qmc_error(COMPONENT, "cannot start the thread that loads the model");
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	return status;
}

static qmla_status_t serve(struct process *process)
{
	qmla_status_t status;

	/* All threads are started in here, or by those that are. */
	qmw_signals_hold();
	status = start(process);
	qmw_signals_release();
	if (status == QMLA_OK)
		status = await_load(process);
	if (status == QMLA_OK)
		wait_for_end(process);
	else
		qmc_error(COMPONENT, "cannot start (%s)", qmla_status_name(status));
	end(process);
	return status;
}

int main(int argc, char **argv)
{
	static struct process process;
	enum qmc_options_result result;
	qmla_status_t status = qmw_signals_install();

	if (status != QMLA_OK)
		return 1;
	result = qmw_options_parse(argc, argv, &process.flags, &process.config);
	if (result == QMC_OPTIONS_RUN)
		status = serve(&process);
	qmw_options_release(&process.flags);
	if (result == QMC_OPTIONS_EXIT_USAGE)
		return 2;
	return status == QMLA_OK ? 0 : 1;
}
