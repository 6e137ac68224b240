/* SPDX-License-Identifier: Apache-2.0 */
#include "server/node_options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "server/service_internal.h"
#include "server/version.h"

#define SECOND UINT64_C(1000000000)

#define TEXT(name_, field_, meta_, help_)                                                          \
	{                                                                                          \
		.name = name_, .kind = QMC_OPTION_STRING, .target = &o->field_, .metavar = meta_,  \
		.help = help_                                                                      \
	}
#define RELOADED_TEXT(name_, field_, meta_, help_)                                                 \
	{                                                                                          \
		.name = name_, .kind = QMC_OPTION_STRING, .target = &o->field_, .metavar = meta_,  \
		.help = help_, .reloadable = true                                                  \
	}
#define COUNT(name_, field_, min_, max_, help_)                                                    \
	{                                                                                          \
		.name = name_, .kind = QMC_OPTION_UNSIGNED, .target = &o->field_, .metavar = "N",  \
		.help = help_, .min = min_, .max = max_                                            \
	}
#define TIME(name_, field_, min_, max_, reload_, help_)                                            \
	{                                                                                          \
		.name = name_, .kind = QMC_OPTION_DURATION, .target = &o->field_,                  \
		.metavar = "TIME", .help = help_, .min = min_, .max = max_, .reloadable = reload_  \
	}
#define FLAG(name_, field_, help_)                                                                 \
	{                                                                                          \
		.name = name_, .kind = QMC_OPTION_BOOL, .target = &o->field_, .help = help_        \
	}

#define OPTIONS_MAX 40

static size_t fill_table(struct qms_node_options *o, struct qmc_option table[OPTIONS_MAX])
{
	const struct qmc_option all[] = {
		TEXT("config", config, "FILE",
		     "read flags from FILE, lines 'name = value'; flags given here win"),
		TEXT("node-id", node_id, "NAME", "name of this node [the host's name]"),
		TEXT("listen", listen, "HOST:PORT",
		     "control plane, gRPC [127.0.0.1:7600]; port 0: any free one"),
		TEXT("data-listen", data_listen, "HOST:PORT",
		     "data plane, tcp [the host of --listen, port 7601]"),
		TEXT("advertise", advertise, "HOST",
		     "host that clients use for the data plane [the one listened at]"),
		TEXT("shm-dir", shm_dir, "DIR",
		     "directory of the shared-memory socket, or 'none' [a private one under "
		     "$XDG_RUNTIME_DIR, /run, $TMPDIR or /tmp]"),
		TEXT("rdma-devices", rdma_devices, "LIST",
		     "RDMA devices to serve through, 'name[:port[:gid]],…', or 'none' [those that "
		     "are up, best first]"),
		TEXT("http-listen", http_listen, "HOST:PORT",
		     "/healthz, /readyz and /metrics, or 'none' [the host of --listen, port 7602]"),
		TEXT("port-file", port_file, "FILE",
		     "write the ports here once the node serves: gRPC's on the first line, then "
		     "name=value lines"),
		{.name = "pool-size",
		 .kind = QMC_OPTION_BYTES,
		 .target = &o->pool_size,
		 .metavar = "SIZE",
		 .help = "memory for blocks, all identities together [1GiB]",
		 .min = 1u << 16},
		COUNT("max-identities", max_identities, 1, QMS_MAX_IDENTITIES,
		      "equal shares the memory is cut into, one a model and layout [4]"),
		FLAG("huge-pages", huge_pages,
		     "take the memory from 2 MiB pages set aside (vm.nr_hugepages)"),
		FLAG("prefault", prefault, "take all memory at start instead of on first use"),
		TIME("max-lease", max_lease, SECOND / 1000, 3600 * SECOND, true,
		     "longest lease or ticket granted at a time [60s]*"),
		TIME("default-lease", default_lease, SECOND / 1000, 3600 * SECOND, false,
		     "when a caller names none [10s]"),
		TIME("default-pin-ttl", default_pin_ttl, SECOND / 1000, 0, true,
		     "life of a pin when its owner names none [10m]*"),
		TIME("max-pin-ttl", max_pin_ttl, SECOND / 1000, 0, false,
		     "longest life of a pin [24h]"),
		TIME("identity-idle", identity_idle, 0, 0, true,
		     "an identity unused for so long may lose its pool to a new one [5m]*"),
		COUNT("max-leases", max_leases, 1, 1u << 24, "leases in force at a time [65536]"),
		COUNT("max-leased-slots", max_leased_slots, 1, 1u << 28,
		      "slots under all leases together [1048576]"),
		COUNT("max-leased-percent", max_leased_percent, 1, 100,
		      "share of a pool that may be leased [100]"),
		COUNT("max-tickets", max_tickets, 1, 1u << 24,
		      "slots reserved by writers at a time [65536]"),
		COUNT("max-pins", max_pins, 1, 1u << 24, "pins in force at a time [65536]"),
		COUNT("max-batch-keys", max_batch_keys, 1, QMS_MAX_BATCH_KEYS,
		      "keys one call may name [4096]"),
		COUNT("max-watchers", max_watchers, 1, 4096, "Watch streams at a time [64]"),
		COUNT("watch-ring", watch_ring, 16, 1u << 20,
		      "events a watcher may fall behind [4096]"),
		TIME("watch-heartbeat", heartbeat, SECOND / 100, 3600 * SECOND, false,
		     "sign of life on a watch where nothing happens [5s]"),
		COUNT("rpc-threads", rpc_threads, 1, 256, "calls served at a time [4]"),
		COUNT("data-threads", data_threads, 0, 256,
		      "threads of each transport [0: its own default]"),
		COUNT("max-peers", max_peers, 0, 1u << 20,
		      "data connections at a time [0: the transport's default]"),
		TIME("data-idle-timeout", idle_timeout, 0, 3600 * SECOND, false,
		     "a peer that stalls inside a transfer is dropped after this [0: the "
		     "transport's default]"),
		TIME("drain-timeout", drain_timeout, 0, 24 * 3600 * SECOND, true,
		     "how long leases and transfers may take to finish on SIGTERM [30s]*"),
		TEXT("tls-ca", tls_ca, "FILE",
		     "PEM of who signs clients: each must show a certificate"),
		TEXT("tls-certificate", tls_certificate, "FILE",
		     "PEM of this node; turns TLS on for the control plane"),
		TEXT("tls-key", tls_key, "FILE", "PEM key of the certificate"),
		RELOADED_TEXT("log-level", log_level, "LEVEL",
			      "error, warn, info, debug or trace [info]*"),
		RELOADED_TEXT("log-format", log_format, "FORMAT", "text or json [text]*"),
		FLAG("version", version, "show the version"),
	};

	_Static_assert(sizeof(all) / sizeof(all[0]) <= OPTIONS_MAX, "raise OPTIONS_MAX");
	memcpy(table, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}

static struct qmc_options describe(const struct qmc_option *table, size_t count)
{
	return (struct qmc_options){
		.program = "qmla-node",
		.synopsis = "[flags]",
		.summary = "A cache node: holds packed INT4/INT2 blocks of MLA attention state in "
			   "memory and\n"
			   "serves them to prefill and decode workers.",
		.epilogue = "A * marks what SIGHUP reads again from the configuration file. "
			    "SIGTERM and SIGINT\n"
			    "drain the node; a second one ends it at once.\n\n"
			    "Exit status: 0 after an orderly end, 1 when the node cannot start or "
			    "was cut short,\n"
			    "2 for a mistake in the flags.\n\n"
			    "Examples:\n"
			    "  qmla-node --pool-size 8GiB\n"
			    "  qmla-node --listen [::]:7600 --advertise cache-1.example.net "
			    "--http-listen [::]:7602\n"
			    "  qmla-node --listen 127.0.0.1:0 --data-listen 127.0.0.1:0 "
			    "--http-listen 127.0.0.1:0 \\\n"
			    "            --port-file /tmp/node.ports",
		.table = table,
		.count = count,
	};
}

static void set_defaults(struct qms_node_options *o)
{
	memset(o, 0, sizeof(*o));
	o->pool_size = UINT64_C(1) << 30;
	o->max_identities = 4;
	o->max_batch_keys = 4096;
	o->rpc_threads = 4;
	o->max_leases = o->max_tickets = o->max_pins = 1u << 16;
	o->max_leased_slots = 1u << 20;
	o->max_leased_percent = 100;
	o->max_watchers = 64;
	o->watch_ring = 4096;
	o->max_lease = 60 * QMC_NS_PER_S;
	o->default_lease = 10 * QMC_NS_PER_S;
	o->default_pin_ttl = 600 * QMC_NS_PER_S;
	o->max_pin_ttl = 24 * 3600 * QMC_NS_PER_S;
	o->identity_idle = 300 * QMC_NS_PER_S;
	o->drain_timeout = 30 * QMC_NS_PER_S;
	o->heartbeat = 5 * QMC_NS_PER_S;
}

static bool default_text(char **target, const char *text)
{
	if (!*target)
		*target = strdup(text);
	return *target != NULL;
}

/* The host of --listen with another port. */
static char *beside_listen(const char *listen, uint16_t port)
{
	char text[QMC_ADDRESS_TEXT_MAX];
	struct qmc_address address;

	if (qmc_address_parse(listen, &address) != QMLA_OK)
		return NULL;
	/* Whoever leaves one port to the kernel does not expect the others to be fixed. */
	address.port = address.port == 0 ? 0 : port;
	qmc_address_format(&address, text);
	return strdup(text);
}

static bool set_texts(struct qms_node_options *o)
{
	char host[QMS_NODE_ID_MAX] = "";

	if (gethostname(host, sizeof(host) - 1) != 0 || !host[0])
		strcpy(host, "node");
	if (!default_text(&o->node_id, host) || !default_text(&o->listen, "127.0.0.1:7600") ||
	    !default_text(&o->log_level, "info") || !default_text(&o->log_format, "text"))
		return false;
	if (!o->data_listen)
		o->data_listen = beside_listen(o->listen, 7601);
	if (!o->http_listen)
		o->http_listen = beside_listen(o->listen, 7602);
	return true;
}

static bool check_log(const struct qms_node_options *o)
{
	enum qmc_log_level level;
	enum qmc_log_format format;

	if (qmc_log_level_parse(o->log_level, &level) != QMLA_OK) {
		fprintf(stderr,
			"qmla-node: --log-level: '%s' is none of error, warn, info, debug, "
			"trace\n",
			o->log_level);
		return false;
	}
	if (qmc_log_format_parse(o->log_format, &format) != QMLA_OK) {
		fprintf(stderr, "qmla-node: --log-format: '%s' is neither text nor json\n",
			o->log_format);
		return false;
	}
	qmc_log_configure(level, format);
	return true;
}

static bool check(const struct qms_node_options *o)
{
	struct qmc_address address;

	if (strlen(o->node_id) >= QMS_NODE_ID_MAX || strpbrk(o->node_id, "\n\r")) {
		fprintf(stderr, "qmla-node: --node-id: at most %d characters on one line\n",
			QMS_NODE_ID_MAX - 1);
		return false;
	}
	if (qmc_address_parse(o->listen, &address) != QMLA_OK || !o->data_listen ||
	    qmc_address_parse(o->data_listen, &address) != QMLA_OK) {
		fprintf(stderr,
			"qmla-node: --listen '%s' or --data-listen '%s' is not host:port, "
			"[v6]:port or a port\n",
			o->listen, o->data_listen ? o->data_listen : "");
		return false;
	}
	if (!o->tls_certificate != !o->tls_key || !o->tls_certificate != !o->tls_ca) {
		fprintf(stderr,
			"qmla-node: TLS needs all of --tls-ca, --tls-certificate and --tls-key\n");
		return false;
	}
	if (o->pool_size / o->max_identities < 4096) {
		fprintf(stderr,
			"qmla-node: --pool-size: less than 4096 bytes for each of %llu "
			"identities\n",
			(unsigned long long)o->max_identities);
		return false;
	}
	return check_log(o);
}

enum qmc_options_result qms_node_options_parse(struct qms_node_options *options, int argc,
					       char **argv)
{
	struct qmc_option table[OPTIONS_MAX];
	struct qmc_options all;
	enum qmc_options_result result;
	int operand = argc;

	set_defaults(options);
	all = describe(table, fill_table(options, table));
	result = qmc_options_parse(&all, argc, argv, &operand);
	if (result != QMC_OPTIONS_RUN)
		return result;
	if (options->version) {
		printf("qmla-node %s\n", QMS_VERSION);
		return QMC_OPTIONS_EXIT_OK;
	}
	if (operand < argc) {
		fprintf(stderr, "qmla-node: '%s' is no flag; try 'qmla-node --help'\n",
			argv[operand]);
		return QMC_OPTIONS_EXIT_USAGE;
	}
	return set_texts(options) && check(options) ? QMC_OPTIONS_RUN : QMC_OPTIONS_EXIT_USAGE;
}

void qms_node_options_release(struct qms_node_options *options)
{
	struct qmc_option table[OPTIONS_MAX];
	struct qmc_options all = describe(table, fill_table(options, table));

	qmc_options_release(&all);
}

qmla_status_t qms_node_options_reload(struct qms_node_options *options)
{
	struct qmc_option table[OPTIONS_MAX];
	struct qmc_options all = describe(table, fill_table(options, table));
	qmla_status_t status;

	if (!options->config) {
		qmc_warn("node", "SIGHUP: there is no --config file to read again");
		return QMLA_ERR_NOT_FOUND;
	}
	status = qmc_options_reload(&all, options->config);
	if (status != QMLA_OK || !check_log(options)) {
		qmc_error("node", "SIGHUP: %s was not taken over", options->config);
		return status != QMLA_OK ? status : QMLA_ERR_INVALID_ARGUMENT;
	}
	qmc_info("node", "SIGHUP: %s read again", options->config);
	return QMLA_OK;
}

void qms_node_options_service(const struct qms_node_options *o, struct qmp_tls *tls,
			      struct qms_service_config *config)
{
	*tls = (struct qmp_tls){o->tls_ca, o->tls_certificate, o->tls_key};
	*config = (struct qms_service_config){
		.node_id = o->node_id,
		.listen = o->listen,
		.tls = o->tls_certificate ? tls : NULL,
		.rpc_threads = (uint32_t)o->rpc_threads,
		.max_batch_keys = (uint32_t)o->max_batch_keys,
		.heartbeat_ns = o->heartbeat,
		.data = {o->data_listen, o->advertise, o->shm_dir, (uint32_t)o->data_threads,
			 (uint32_t)o->max_peers, o->idle_timeout, o->rdma_devices},
		.store =
			{
				.pool_bytes = o->pool_size,
				.max_identities = (uint32_t)o->max_identities,
				.max_leases = (uint32_t)o->max_leases,
				.max_leased_slots = (uint32_t)o->max_leased_slots,
				.max_tickets = (uint32_t)o->max_tickets,
				.max_pins = (uint32_t)o->max_pins,
				.max_leased_percent = (uint32_t)o->max_leased_percent,
				.max_watchers = (uint32_t)o->max_watchers,
				.watch_ring = (uint32_t)o->watch_ring,
				.max_lease_ns = o->max_lease,
				.default_lease_ns = o->default_lease,
				.default_pin_ns = o->default_pin_ttl,
				.max_pin_ns = o->max_pin_ttl,
				.identity_idle_ns = o->identity_idle,
				.huge_pages = o->huge_pages,
				.prefault = o->prefault,
			},
	};
}
