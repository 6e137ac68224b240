/* SPDX-License-Identifier: Apache-2.0 */
#include "server/node.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/http_endpoint.h"
#include "common/log.h"
#include "common/port_file.h"
#include "server/memory_limit.h"
#include "server/metrics.h"
#include "server/service.h"
#include "server/version.h"

#define STOP_GRACE   QMC_NS_PER_S         /* for calls that run when the node ends */
#define DRAIN_POLL   (20 * QMC_NS_PER_MS) /* how often a drain looks whether it is done */
#define STOP_SECONDS 30 /* the transports give up a peer that stalls long before that */

struct node {
	struct qms_node_options *options;
	struct qmp_tls tls;
	struct qms_service *service;
	struct qmc_http_endpoint *http;
	struct qmc_port_file *port_file;
};

/* Connections are many and the default soft limit is small; the hard one is the operator's. */
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
			qmc_debug("node", "the limit of open files stays as it is");
	}
}

static bool ready(void *user)
{
	return qms_service_ready(user);
}

static void metrics(void *user, FILE *out)
{
	qms_metrics_print(user, out);
}

static qmla_status_t start_http(struct node *node)
{
	struct qmc_http_endpoint_config config = {
		.listen = node->options->http_listen,
		.ready = ready,
		.metrics = metrics,
		.user = node->service,
	};

	if (strcmp(config.listen, "none") == 0)
		return QMLA_OK;
	return qmc_http_endpoint_create(&config, &node->http);
}

static qmla_status_t publish_ports(struct node *node)
{
	struct qmc_port_file_values values = {
		.node_id = qms_service_node_id(node->service),
		.incarnation = qms_service_incarnation(node->service),
		.grpc = qms_service_port(node->service),
		.data = qms_service_data_port(node->service),
		.http = node->http ? qmc_http_endpoint_port(node->http) : 0,
	};

	return node->port_file ? qmc_port_file_publish(node->port_file, &values) : QMLA_OK;
}

static qmla_status_t start(struct node *node)
{
	const struct qms_node_options *options = node->options;
	struct qms_service_config config;
	qmla_status_t status;

	qms_node_options_service(options, &node->tls, &config);
	status = qms_memory_limit_check(options->pool_size, options->huge_pages);
	if (status == QMLA_OK && options->port_file)
		status = qmc_port_file_create(options->port_file, &node->port_file);
	if (status == QMLA_OK)
		status = qms_service_create(&config, &node->service);
	if (status == QMLA_OK)
		status = start_http(node);
	if (status != QMLA_OK)
		return status;
	/* Ready before the ports are told, so that whoever waits for the file can go on. */
	qms_service_set_ready(node->service, true);
	return publish_ports(node);
}

/* For the handler of a hard end, which runs on this thread. */
static const struct qmc_port_file *volatile port_file;

static void stop(struct node *node)
{
	if (node->service)
		qms_service_set_ready(node->service, false);
	qmc_http_endpoint_destroy(node->http);
	qms_service_destroy(node->service, STOP_GRACE);
	port_file = NULL;
	qmc_port_file_destroy(node->port_file);
}

static void reload(struct node *node)
{
	const struct qms_node_options *options = node->options;

	if (qms_node_options_reload(node->options) == QMLA_OK)
		qms_store_set_limits(qms_service_store(node->service), options->max_lease,
				     options->default_pin_ttl, options->identity_idle);
}

/* The next of our signals, or 0 when @wait_ns (negative: for ever) passes. */
static int next_signal(int64_t wait_ns)
{
	struct timespec wait = {.tv_sec = (time_t)(wait_ns / QMC_NS_PER_S),
				.tv_nsec = (long)(wait_ns % QMC_NS_PER_S)};
	sigset_t set;
	int signal_number;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	signal_number = wait_ns < 0 ? sigwaitinfo(&set, NULL) : sigtimedwait(&set, NULL, &wait);
	return signal_number > 0 ? signal_number : 0;
}

static void wait_for_end(struct node *node)
{
	for (;;) {
		switch (next_signal(-1)) {
		case SIGHUP:
			reload(node);
			break;
		case SIGTERM:
		case SIGINT:
			return;
		default: /* EINTR: a debugger or a stop and continue */
			break;
		}
	}
}

static void end_at_once(int signal_number)
{
	static const char text[] = "qmla-node: ended at once\n";

	(void)signal_number;
	qmc_port_file_remove(port_file);
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(EXIT_FAILURE);
	_exit(EXIT_FAILURE);
}

/* From here on a second signal, or an end that takes too long, cuts everything short. */
static void arm_hard_end(const struct node *node)
{
	struct sigaction action = {.sa_handler = end_at_once};
	sigset_t set;

	port_file = node->port_file;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGALRM);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	alarm(STOP_SECONDS);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* True when a second signal cut the drain short. */
static bool drain(struct node *node)
{
	qmc_time_t deadline = qmc_clock_after(node->options->drain_timeout);

	qmc_info("node",
		 "draining for at most %lld s: no new writes and leases; a second signal ends "
		 "the node at once",
		 (long long)(node->options->drain_timeout / QMC_NS_PER_S));
	qms_service_drain(node->service, deadline);
	while (!qms_service_idle(node->service)) {
		int signal_number;

		if (qmc_clock_left(deadline) == 0) {
			qmc_warn("node",
				 "drain timeout: leases or transfers are left, ending anyway");
			break;
		}
		signal_number = next_signal(DRAIN_POLL);
		if (signal_number == SIGTERM || signal_number == SIGINT)
			return true;
	}
	return false;
}

static void announce(const struct node *node)
{
	const struct qms_data_plane *data = qms_service_data(node->service);
	const char *name;
	char others[64] = "";

	for (size_t i = 0; (name = qms_data_plane_name(data, i)) != NULL; i++) {
		size_t used = strlen(others);

		if (strcmp(name, "tcp") != 0)
			snprintf(others + used, sizeof(others) - used, " and %s", name);
	}
	qmc_info("node", "%s %s serves: grpc %s (port %u), data port %u%s, %.2f GiB in %llu pools",
		 qms_service_node_id(node->service), QMS_VERSION, node->options->listen,
		 qms_service_port(node->service), qms_service_data_port(node->service), others,
		 (double)node->options->pool_size / 0x1p30,
		 (unsigned long long)node->options->max_identities);
}

int qms_node_run(struct qms_node_options *options)
{
	struct node node = {.options = options};
	qmla_status_t status;

	raise_file_limit();
	status = start(&node);
	if (status != QMLA_OK) {
		stop(&node);
		qmc_error("node", "cannot start: %s", qmla_status_text(status));
		return EXIT_FAILURE;
	}
	announce(&node);
	wait_for_end(&node);
	if (drain(&node)) {
		qmc_warn("node", "second signal: ending at once");
		qmc_port_file_destroy(node.port_file);
		_exit(EXIT_FAILURE);
	}
	arm_hard_end(&node);
	stop(&node);
	qmc_info("node", "ended");
	return EXIT_SUCCESS;
}
