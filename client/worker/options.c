/* SPDX-License-Identifier: Apache-2.0 */
#include "client/worker/options.h"

#include <stdio.h>
#include <string.h>

#include "common/address.h"
#include "common/log.h"

#define FLAG_COUNT 29

static const struct qmw_flags defaults = {
	.pool_size = UINT64_C(1) << 30,
	.max_batch = 16,
	.max_waiting = 32,
	.chunk = 256,
	.replicas = 1,
	.prefill_min_blocks = 4,
	.fetch_timeout = QMC_NS_PER_S,
	.prefill_timeout = 60 * QMC_NS_PER_S,
	.queue_timeout = 30 * QMC_NS_PER_S,
	.request_timeout = 600 * QMC_NS_PER_S,
	.drain_timeout = 30 * QMC_NS_PER_S,
	.local_reuse = true,
};

static const char usage[] =
	"Usage: qmla-worker prefill|decode [flags]\n"
	"       qmla-worker --version\n\n"
	"Runs one worker of a QuantMLA cache: a prefill worker computes prompts and publishes\n"
	"their blocks to the nodes, a decode worker fetches them and generates text.\n"
	"'qmla-worker ROLE --help' lists the flags.\n";

/* The table points into `f`; a table of its own for each parse. */
static void table_make(struct qmw_flags *f, struct qmc_option table[FLAG_COUNT])
{
	const struct qmc_option list[FLAG_COUNT] = {
		{"config", 'c', QMC_OPTION_STRING, &f->config, "FILE",
		 "read flags from FILE (name = value); flags given here win", 0, 0, false},
		{"model", 'm', QMC_OPTION_STRING, &f->model, "DIR",
		 "Hugging Face checkpoint with quantmla.json beside it", 0, 0, false},
		{"format", 'f', QMC_OPTION_STRING, &f->format, "NAME",
		 "packed cache: c4r4, c2r4, paper-c4r4; default: what quantmla.json says, else "
		 "c4r4",
		 0, 0, false},
		{"nodes", 'n', QMC_OPTION_LIST, &f->nodes, "LIST",
		 "cache nodes, host:port[*weight],…; none: no cache", 0, 0, false},
		{"prefill", 0, QMC_OPTION_STRING, &f->prefill, "ADDR",
		 "prefill worker for long prompts (decode only)", 0, 0, false},
		{"listen", 'l', QMC_OPTION_STRING, &f->listen, "ADDR",
		 "gRPC address, default 127.0.0.1:7100 prefill, 127.0.0.1:7200 decode; port 0: any",
		 0, 0, false},
		{"http-listen", 0, QMC_OPTION_STRING, &f->http_listen, "ADDR",
		 "serve /healthz, /readyz and /metrics there", 0, 0, false},
		{"port-file", 0, QMC_OPTION_STRING, &f->port_file, "FILE",
		 "write the gRPC port there once it is bound", 0, 0, false},
		{"namespace", 0, QMC_OPTION_STRING, &f->name_space, "TEXT",
		 "salts the keys of requests that name no namespace", 0, 0, false},
		{"transport", 0, QMC_OPTION_STRING, &f->transport, "NAME",
		 "how blocks move: auto (default), verbs, shm, tcp", 0, 0, false},
		{"pool-size", 0, QMC_OPTION_BYTES, &f->pool_size, "SIZE",
		 "memory for packed blocks, default 1GiB", 1, 0, false},
		{"max-batch", 0, QMC_OPTION_UNSIGNED, &f->max_batch, "N",
		 "requests that run at a time, default 16", 1, 256, false},
		{"max-waiting", 0, QMC_OPTION_UNSIGNED, &f->max_waiting, "N",
		 "further requests that may wait, default 32", 0, 512, false},
		{"chunk", 0, QMC_OPTION_UNSIGNED, &f->chunk, "N",
		 "prompt tokens in one step, default 256", 64, 65536, false},
		{"threads", 't', QMC_OPTION_UNSIGNED, &f->threads, "N",
		 "threads that compute, default: one a processor", 0, 64, false},
		{"replicas", 0, QMC_OPTION_UNSIGNED, &f->replicas, "N",
		 "nodes that get a copy of each block, default 1", 1, 16, false},
		{"prefill-min-blocks", 0, QMC_OPTION_UNSIGNED, &f->prefill_min_blocks, "N",
		 "fewer missing blocks of 64 tokens are computed here, default 4", 1, 0, false},
		{"local-reuse", 0, QMC_OPTION_BOOL, &f->local_reuse, NULL,
		 "keep blocks of past requests in the own pool (default on)", 0, 0, false},
		{"fetch-timeout", 0, QMC_OPTION_DURATION, &f->fetch_timeout, "TIME",
		 "longest wait for the nodes, default 1s, and 4 ms a MiB more", 10 * QMC_NS_PER_MS,
		 600 * QMC_NS_PER_S, false},
		{"prefill-timeout", 0, QMC_OPTION_DURATION, &f->prefill_timeout, "TIME",
		 "longest wait for the prefill worker, default 60s", 10 * QMC_NS_PER_MS,
		 3600 * QMC_NS_PER_S, false},
		{"queue-timeout", 0, QMC_OPTION_DURATION, &f->queue_timeout, "TIME",
		 "longest wait for room in the pool, default 30s", 0, 3600 * QMC_NS_PER_S, false},
		{"request-timeout", 0, QMC_OPTION_DURATION, &f->request_timeout, "TIME",
		 "longest life of a request, default 10m", QMC_NS_PER_S, 86400 * QMC_NS_PER_S,
		 false},
		{"drain-timeout", 0, QMC_OPTION_DURATION, &f->drain_timeout, "TIME",
		 "on SIGTERM, how long running requests may take, default 30s", 0,
		 3600 * QMC_NS_PER_S, false},
		{"ignore-calibration", 0, QMC_OPTION_BOOL, &f->ignore_calibration, NULL,
		 "run without quantmla.json: another identity, other text", 0, 0, false},
		{"tls-ca", 0, QMC_OPTION_STRING, &f->tls_ca, "FILE",
		 "PEM of who signs nodes, workers and clients; with the next two: mutual TLS", 0, 0,
		 false},
		{"tls-certificate", 0, QMC_OPTION_STRING, &f->tls_certificate, "FILE",
		 "PEM of this worker, as a server and as a client", 0, 0, false},
		{"tls-key", 0, QMC_OPTION_STRING, &f->tls_key, "FILE", "PEM key of the certificate",
		 0, 0, false},
		{"log-level", 0, QMC_OPTION_STRING, &f->log_level, "LEVEL",
		 "error, warn, info (default), debug, trace", 0, 0, true},
		{"log-format", 0, QMC_OPTION_STRING, &f->log_format, "FORMAT",
		 "text (default) or json", 0, 0, true},
	};

	memcpy(table, list, sizeof(list));
}

static bool apply_log(const struct qmw_flags *f)
{
	enum qmc_log_level level = QMC_LOG_INFO;
	enum qmc_log_format format = QMC_LOG_TEXT;

	if (f->log_level && qmc_log_level_parse(f->log_level, &level) != QMLA_OK) {
		fprintf(stderr,
			"qmla-worker: --log-level: '%s' is none of error, warn, info, "
			"debug, trace\n",
			f->log_level);
		return false;
	}
	if (f->log_format && qmc_log_format_parse(f->log_format, &format) != QMLA_OK) {
		fprintf(stderr, "qmla-worker: --log-format: '%s' is neither text nor json\n",
			f->log_format);
		return false;
	}
	qmc_log_configure(level, format);
	return true;
}

static bool check_transport(const char *text)
{
	if (!text || strcmp(text, "auto") == 0 || strcmp(text, "tcp") == 0 ||
	    strcmp(text, "shm") == 0 || strcmp(text, "verbs") == 0)
		return true;
	fprintf(stderr, "qmla-worker: --transport: '%s' is none of auto, verbs, shm, tcp\n", text);
	return false;
}

static bool check_address(const char *flag, const char *text)
{
	struct qmc_address address;

	if (!text || qmc_address_parse(text, &address) == QMLA_OK)
		return true;
	fprintf(stderr, "qmla-worker: --%s: '%s' is no address, expected host:port or [v6]:port\n",
		flag, text);
	return false;
}

static bool check_tls(const struct qmw_flags *f)
{
	if (!f->tls_ca == !f->tls_certificate && !f->tls_ca == !f->tls_key)
		return true;
	fprintf(stderr,
		"qmla-worker: TLS needs all of --tls-ca, --tls-certificate and --tls-key\n");
	return false;
}

static bool check(const struct qmw_flags *f, struct qmw_worker_config *config)
{
	config->format = (enum qmk_format)0; /* what the model was calibrated for */
	if (!f->model) {
		fprintf(stderr, "qmla-worker: --model is missing: name a checkpoint's directory\n");
		return false;
	}
	if (f->format && qmk_format_parse(f->format, &config->format) != QMLA_OK) {
		fprintf(stderr, "qmla-worker: --format: '%s' is none of c4r4, c2r4, paper-c4r4\n",
			f->format);
		return false;
	}
	if (config->role == QMW_ROLE_PREFILL && !f->nodes) {
		fprintf(stderr, "qmla-worker: --nodes is missing: a prefill worker publishes to "
				"cache nodes\n");
		return false;
	}
	if (config->role == QMW_ROLE_PREFILL && f->prefill) {
		fprintf(stderr, "qmla-worker: --prefill is for decode workers\n");
		return false;
	}
	return check_transport(f->transport) && check_tls(f) &&
	       check_address("prefill", f->prefill) && check_address("listen", f->listen) &&
	       check_address("http-listen", f->http_listen) && apply_log(f);
}

static void fill(struct qmw_flags *f, struct qmw_worker_config *config)
{
	f->tls = (struct qmp_tls){f->tls_ca, f->tls_certificate, f->tls_key};
	config->tls = f->tls_ca ? &f->tls : NULL;
	config->ignore_calibration = f->ignore_calibration;
	config->model = f->model;
	config->nodes = f->nodes;
	config->transport = f->transport;
	config->prefill = f->prefill;
	config->name_space = f->name_space;
	config->pool_bytes = f->pool_size;
	config->local_reuse = f->local_reuse;
	config->replicas = (uint32_t)f->replicas;
	config->max_batch = (uint32_t)f->max_batch;
	config->max_waiting = (uint32_t)f->max_waiting;
	config->chunk = (uint32_t)f->chunk;
	config->threads = (uint32_t)f->threads;
	config->prefill_min_blocks = (uint32_t)f->prefill_min_blocks;
	config->fetch_timeout_ns = f->fetch_timeout;
	config->prefill_timeout_ns = f->prefill_timeout;
	config->queue_timeout_ns = f->queue_timeout;
	config->request_timeout_ns = f->request_timeout;
}

static enum qmc_options_result parse_role(int argc, char **argv, enum qmw_role *role)
{
	if (argc < 2) {
		fputs(usage, stderr);
		return QMC_OPTIONS_EXIT_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		fputs(usage, stdout);
		return QMC_OPTIONS_EXIT_OK;
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("qmla-worker %s\n", qmla_version());
		return QMC_OPTIONS_EXIT_OK;
	}
	*role = strcmp(argv[1], "prefill") == 0 ? QMW_ROLE_PREFILL : QMW_ROLE_DECODE;
	if (*role == QMW_ROLE_DECODE && strcmp(argv[1], "decode") != 0) {
		fprintf(stderr, "qmla-worker: '%s' is no role: say prefill or decode first\n",
			argv[1]);
		return QMC_OPTIONS_EXIT_USAGE;
	}
	return QMC_OPTIONS_RUN;
}

static struct qmc_options describe(const struct qmc_option *table, enum qmw_role role)
{
	bool decode = role == QMW_ROLE_DECODE;

	return (struct qmc_options){
		.program = decode ? "qmla-worker decode" : "qmla-worker prefill",
		.synopsis = "--model DIR [--nodes LIST] [flags]",
		.summary =
			decode ? "Generates text: fetches the cached prefix of a prompt from the "
				 "nodes, has\nlong rests computed by the prefill worker, computes "
				 "the tail itself."
			       : "Computes prompts in chunks and publishes every full block to "
				 "the nodes while\nlater ones are being computed.",
		.epilogue =
			"SIGTERM: no new requests, running ones may finish within "
			"--drain-timeout; a second\nSIGTERM ends at once, with status 1. "
			"SIGHUP: log-level and log-format are read again\nfrom --config.\n"
			"Exit status: 0 ended by a signal, 1 it could not start, 2 wrong usage.",
		.table = table,
		.count = FLAG_COUNT,
	};
}

enum qmc_options_result qmw_options_parse(int argc, char **argv, struct qmw_flags *flags,
					  struct qmw_worker_config *config)
{
	struct qmc_option table[FLAG_COUNT];
	struct qmc_options options;
	enum qmc_options_result result = parse_role(argc, argv, &config->role);
	int operand;

	*flags = defaults;
	if (result != QMC_OPTIONS_RUN)
		return result;
	table_make(flags, table);
	options = describe(table, config->role);
	result = qmc_options_parse(&options, argc - 1, argv + 1, &operand);
	if (result != QMC_OPTIONS_RUN)
		return result;
	if (operand < argc - 1) {
		fprintf(stderr, "%s: '%s' is one argument too many: all settings are flags\n",
			options.program, argv[1 + operand]);
		return QMC_OPTIONS_EXIT_USAGE;
	}
	if (!check(flags, config))
		return QMC_OPTIONS_EXIT_USAGE;
	fill(flags, config);
	return QMC_OPTIONS_RUN;
}

void qmw_options_reload(struct qmw_flags *flags)
{
	struct qmc_option table[FLAG_COUNT];
	struct qmc_options options;

	if (!flags->config) {
		qmc_warn("worker", "SIGHUP: there is no --config to read again");
		return;
	}
	table_make(flags, table);
	options = describe(table, QMW_ROLE_DECODE);
	if (qmc_options_reload(&options, flags->config) == QMLA_OK && apply_log(flags))
		qmc_info("worker", "%s was read again", flags->config);
}

void qmw_options_release(struct qmw_flags *flags)
{
	struct qmc_option table[FLAG_COUNT];
	struct qmc_options options;

	table_make(flags, table);
	options = describe(table, QMW_ROLE_DECODE);
	qmc_options_release(&options);
}
