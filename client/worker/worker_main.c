/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/worker/decode_service.h"
#include "client/worker/options.h"
#include "client/worker/prefill_service.h"
#include "client/worker/stats_service.h"
#include "client/worker/worker.h"
#include "common/http_endpoint.h"
#include "common/log.h"
#include "proto/rpc_server.h"
#include "qmla/v1/worker.pb-c.h"

#define COMPONENT        "worker"
#define MAX_MESSAGE      (4u << 20)
#define SPARE_THREADS    4 /* WorkerStats, and refusing what is too much */
#define FLUSH_TIMEOUT_NS (5 * QMC_NS_PER_S)

/* The servers come up before the model is loaded: a taken port shows at once, and health is asked.
 */
struct process {
	struct qmw_flags flags;
	struct qmw_worker_config config;
	_Atomic(struct qmw_worker *) worker; /* NULL while loading and while ending */
	struct qmp_server *server;
	struct qmc_http_endpoint *http;
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
	struct qmp_server_config config = {
		.listen = process->flags.listen ? process->flags.listen
			  : decode              ? "127.0.0.1:7200"
						: "127.0.0.1:7100",
		.threads = qmw_worker_limit(&process->config) + SPARE_THREADS,
		.max_message_bytes = MAX_MESSAGE,
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
	return qmp_server_create(&config, &service, 1, &process->server);
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

/* The port on the first line, then name=value, as a node writes it. A reader never sees half of it.
 */
static qmla_status_t write_port_file(const struct process *process)
{
	const char *path = process->flags.port_file;
	uint16_t port = qmp_server_port(process->server);
	char temporary[4096];
	FILE *file;
	bool failed;

	if (!path)
		return QMLA_OK;
	if (snprintf(temporary, sizeof(temporary), "%s.tmp", path) >= (int)sizeof(temporary))
		return QMLA_ERR_INVALID_ARGUMENT;
	file = fopen(temporary, "w");
	failed = !file || fprintf(file, "%u\ngrpc=%u\n", port, port) < 0;
	if (!failed && process->http)
		failed = fprintf(file, "http=%u\n", qmc_http_endpoint_port(process->http)) < 0;
	failed = failed || fprintf(file, "pid=%ld\n", (long)getpid()) < 0;
	if (file)
		failed = fclose(file) != 0 || failed;
	if (failed || rename(temporary, path) != 0) {
		qmc_error(COMPONENT,
			  "--port-file %s: cannot write it: %s; choose a place that can "
			  "be written",
			  path, strerror(errno));
		return QMLA_ERR_IO;
	}
	return QMLA_OK;
}

static void set_ready(struct process *process, bool ready)
{
	atomic_store_explicit(&process->ready, ready, memory_order_relaxed);
	qmp_server_set_serving(process->server, ready);
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
			 qmw_role_name(process->config.role), qmp_server_port(process->server),
			 process->config.nodes ? process->config.nodes : "none");
	}
	/* Release: who sees it may read load_status. */
	atomic_store_explicit(&process->loaded, true, memory_order_release);
	return NULL;
}

static void remove_port_file(const struct process *process)
{
	if (process->flags.port_file)
		unlink(process->flags.port_file);
}

/* A large model takes minutes; nothing is lost by ending in the middle of it. */
static qmla_status_t load(struct process *process, const sigset_t *signals)
{
	const struct timespec pause = {.tv_nsec = 100 * QMC_NS_PER_MS};

	if (pthread_create(&process->loader, NULL, load_thread, process) != 0)
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	while (!atomic_load_explicit(&process->loaded, memory_order_acquire)) {
		int number = sigtimedwait(signals, NULL, &pause);

		if (number == SIGTERM || number == SIGINT) {
			qmc_info(COMPONENT, "%s: ended while loading", strsignal(number));
			remove_port_file(process);
			_exit(0);
		}
	}
	pthread_join(process->loader, NULL);
	return process->load_status;
}

/* Until SIGTERM or SIGINT. */
static void wait_for_end(struct process *process, const sigset_t *signals)
{
	int number;

	for (;;) {
		if (sigwait(signals, &number) != 0)
			continue;
		if (number != SIGHUP)
			break;
		qmw_options_reload(&process->flags);
	}
	qmc_info(COMPONENT, "%s: draining", strsignal(number));
}

static void end(struct process *process)
{
	struct qmw_worker *worker = loaded(process);

	remove_port_file(process);
	if (worker)
		qmw_worker_drain(worker);
	if (process->server)
		set_ready(process, false);
	/* Waits for running calls, then cancels them; no handler is inside after it. */
	qmp_server_destroy(process->server, process->flags.drain_timeout);
	qmc_http_endpoint_destroy(process->http);
	qmw_worker_destroy(worker, qmc_clock_after(FLUSH_TIMEOUT_NS));
}

static qmla_status_t serve(struct process *process, const sigset_t *signals)
{
	qmla_status_t status = start_rpc(process);

	if (status == QMLA_OK)
		status = start_http(process);
	if (status == QMLA_OK)
		status = write_port_file(process);
	if (status == QMLA_OK)
		status = load(process, signals);
	return status;
}

/* Before any thread starts, so that all of them inherit the mask. */
static void block_signals(sigset_t *signals)
{
	sigemptyset(signals);
	sigaddset(signals, SIGTERM);
	sigaddset(signals, SIGINT);
	sigaddset(signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, signals, NULL);
	signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
	static struct process process;
	sigset_t signals;
	enum qmc_options_result result =
		qmw_options_parse(argc, argv, &process.flags, &process.config);
	qmla_status_t status = QMLA_OK;

	if (result == QMC_OPTIONS_RUN) {
		block_signals(&signals);
		status = serve(&process, &signals);
		if (status == QMLA_OK)
			wait_for_end(&process, &signals);
		end(&process);
	}
	qmw_options_release(&process.flags);
	if (result == QMC_OPTIONS_EXIT_USAGE)
		return 2;
	return status == QMLA_OK ? 0 : 1;
}
