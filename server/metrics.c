/* SPDX-License-Identifier: Apache-2.0 */
#include "server/metrics.h"

#include <stdatomic.h>

#include "server/service_internal.h"
#include "server/version.h"

/* Upper bounds of the latency buckets; the last one is without bound. */
static const int64_t bounds_ns[QMS_METRICS_BUCKETS] = {
	50 * QMC_NS_PER_US, 100 * QMC_NS_PER_US,  250 * QMC_NS_PER_US, 500 * QMC_NS_PER_US,
	1 * QMC_NS_PER_MS,  2500 * QMC_NS_PER_US, 5 * QMC_NS_PER_MS,   10 * QMC_NS_PER_MS,
	50 * QMC_NS_PER_MS, 100 * QMC_NS_PER_MS,  500 * QMC_NS_PER_MS, 1 * QMC_NS_PER_S,
};

static void add(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static uint64_t get(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

void qms_metrics_observe(struct qms_metrics *metrics, size_t method, qmla_status_t status,
			 int64_t ns)
{
	struct qms_method_metrics *m = &metrics->methods[method];
	unsigned code = status <= 0 && status > -QMS_METRICS_CODES ? (unsigned)-status
								   : QMS_METRICS_CODES - 1;
	size_t bucket = 0;

	while (bucket < QMS_METRICS_BUCKETS && ns > bounds_ns[bucket])
		bucket++;
	add(&m->codes[code], 1);
	add(&m->buckets[bucket], 1);
	add(&m->total_ns, (uint64_t)(ns > 0 ? ns : 0));
}

static void head(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP qmla_node_%s %s\n# TYPE qmla_node_%s %s\n", name, help, name, type);
}

static void single(FILE *out, const char *name, const char *type, uint64_t value, const char *help)
{
	head(out, name, type, help);
	fprintf(out, "qmla_node_%s %llu\n", name, (unsigned long long)value);
}

static void print_node(struct qms_service *service, FILE *out)
{
	char id[2 * QMS_NODE_ID_MAX];
	size_t n = 0;

	/* Label values escape backslash, quote and newline; other control characters are dropped.
	 */
	for (const char *c = service->node_id; *c && n + 2 < sizeof(id); c++) {
		if ((unsigned char)*c < 0x20)
			continue;
		if (*c == '\\' || *c == '"')
			id[n++] = '\\';
		id[n++] = *c;
	}
	id[n] = '\0';
	head(out, "info", "gauge", "Always 1; who and what this node is.");
	fprintf(out,
		"qmla_node_info{node_id=\"%s\",version=\"" QMS_VERSION
		"\",incarnation=\"%016llx\"} 1\n",
		id, (unsigned long long)service->incarnation);
	head(out, "uptime_seconds", "gauge", "Seconds since the node started.");
	fprintf(out, "qmla_node_uptime_seconds %.3f\n",
		(double)(qmc_clock_now() - service->started) / (double)QMC_NS_PER_S);
	single(out, "ready", "gauge", qms_service_ready(service), "1 when the node takes calls.");
	single(out, "draining", "gauge", qms_service_draining(service),
	       "1 when the node is leaving.");
}

static void print_store(struct qms_service *service, FILE *out)
{
	struct qms_store_stats s;

	qms_store_stats(service->store, &s);
	single(out, "capacity_bytes", "gauge", s.capacity_bytes, "Size of all pools together.");
	single(out, "used_bytes", "gauge", s.used_bytes, "Bytes of slots in use.");
	single(out, "slots", "gauge", s.slots, "Slots of the open pools.");
	single(out, "blocks", "gauge", s.blocks, "Blocks that can be found.");
	single(out, "identities", "gauge", s.identities, "Open pools.");
	single(out, "leases", "gauge", s.leases, "Leases in force.");
	single(out, "tickets", "gauge", s.tickets, "Reserved slots not yet committed.");
	single(out, "pins", "gauge", s.pins, "Pins in force.");
	single(out, "watchers", "gauge", s.watchers, "Open Watch streams.");
	single(out, "inflight_transfers", "gauge", s.inflight, "Transfers being moved.");
	single(out, "lookup_keys_total", "counter", s.lookups, "Keys asked for.");
	single(out, "hits_total", "counter", s.hits, "Keys found.");
	single(out, "reserved_total", "counter", s.reserves, "Slots reserved for writers.");
	single(out, "committed_total", "counter", s.commits, "Blocks made visible.");
	single(out, "evicted_total", "counter", s.evictions, "Blocks given up for new ones.");
	single(out, "removed_total", "counter", s.removals, "Blocks removed by request.");
	single(out, "rejected_full_total", "counter", s.rejected_full,
	       "Keys refused because everything was held.");
	single(out, "busy_writers_total", "counter", s.busy_writers,
	       "Keys refused because another writer was at them.");
	single(out, "corrupt_commits_total", "counter", s.corrupt_commits,
	       "Written blocks refused at commit.");
	single(out, "corrupt_reports_total", "counter", s.corrupt_reports,
	       "Blocks dropped because a reader found them bad.");
	single(out, "expired_leases_total", "counter", s.expired_leases,
	       "Leases that ended unreleased.");
	single(out, "expired_tickets_total", "counter", s.expired_tickets,
	       "Reserved slots whose writer did not come back.");
	single(out, "expired_pins_total", "counter", s.expired_pins, "Pins that ended by time.");
	single(out, "lost_watchers_total", "counter", s.lost_watchers,
	       "Watchers that were too slow.");
	single(out, "dropped_identities_total", "counter", s.dropped_identities,
	       "Idle pools given to another identity.");
}

static void pool_line(FILE *out, const char *name, const struct qms_pool_info *info, uint64_t value)
{
	fprintf(out, "qmla_node_%s{pool=\"%u\",identity=\"%02x%02x%02x%02x\"} %llu\n", name,
		info->region, info->identity.bytes[0], info->identity.bytes[1],
		info->identity.bytes[2], info->identity.bytes[3], (unsigned long long)value);
}

static void print_pools(struct qms_service *service, FILE *out)
{
	struct qms_pool_info infos[QMS_MAX_IDENTITIES];
	size_t count = QMS_MAX_IDENTITIES;

	qms_store_pools(service->store, infos, &count);
	head(out, "pool_slots", "gauge", "Slots of a pool.");
	for (size_t i = 0; i < count; i++)
		pool_line(out, "pool_slots", &infos[i], infos[i].slots);
	head(out, "pool_used_slots", "gauge", "Slots of a pool in use.");
	for (size_t i = 0; i < count; i++)
		pool_line(out, "pool_used_slots", &infos[i], infos[i].used_slots);
	head(out, "pool_slot_bytes", "gauge", "Size of a slot of a pool.");
	for (size_t i = 0; i < count; i++)
		pool_line(out, "pool_slot_bytes", &infos[i], infos[i].slot_bytes);
}

static void print_transports(struct qms_service *service, FILE *out)
{
	static const struct {
		const char *name, *type, *help;
	} rows[] = {
		{"transport_read_bytes_total", "counter", "Bytes read by peers."},
		{"transport_written_bytes_total", "counter", "Bytes written by peers."},
		{"transport_reads_total", "counter", "Reads served."},
		{"transport_writes_total", "counter", "Writes served."},
		{"transport_denied_total", "counter", "Accesses refused."},
		{"transport_peers", "gauge", "Connected peers."},
	};

	for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
		head(out, rows[r].name, rows[r].type, rows[r].help);
		for (size_t i = 0; qms_data_plane_name(service->data, i); i++) {
			struct qmt_server_stats s;

			qms_data_plane_stats(service->data, i, &s);
			fprintf(out, "qmla_node_%s{transport=\"%s\"} %llu\n", rows[r].name,
				qms_data_plane_name(service->data, i),
				(unsigned long long)(uint64_t[]){s.bytes_read, s.bytes_written,
								 s.reads, s.writes, s.denied,
								 s.peers}[r]);
		}
	}
}

static void print_method(const struct qms_method_metrics *m, const char *name, FILE *out)
{
	uint64_t below = 0;

	for (size_t b = 0; b < QMS_METRICS_BUCKETS; b++) {
		below += get(&m->buckets[b]);
		fprintf(out,
			"qmla_node_rpc_duration_seconds_bucket{method=\"%s\",le=\"%g\"} %llu\n",
			name, (double)bounds_ns[b] / (double)QMC_NS_PER_S,
			(unsigned long long)below);
	}
	below += get(&m->buckets[QMS_METRICS_BUCKETS]);
	fprintf(out,
		"qmla_node_rpc_duration_seconds_bucket{method=\"%s\",le=\"+Inf\"} %llu\n"
		"qmla_node_rpc_duration_seconds_sum{method=\"%s\"} %.9f\n"
		"qmla_node_rpc_duration_seconds_count{method=\"%s\"} %llu\n",
		name, (unsigned long long)below, name,
		(double)get(&m->total_ns) / (double)QMC_NS_PER_S, name, (unsigned long long)below);
}

static void print_rpc(struct qms_service *service, FILE *out)
{
	head(out, "rpc_requests_total", "counter", "Calls served, by method and status.");
	for (size_t i = 0; i < qms_method_count; i++) {
		for (int code = 0; code < QMS_METRICS_CODES; code++) {
			uint64_t count = get(&service->metrics.methods[i].codes[code]);

			if (count > 0 || code == 0)
				fprintf(out,
					"qmla_node_rpc_requests_total{method=\"%s\",status=\"%s\"} "
					"%llu\n",
					qms_methods[i].name, qmla_status_name((qmla_status_t)-code),
					(unsigned long long)count);
		}
	}
	head(out, "rpc_duration_seconds", "histogram",
	     "Time from a call's arrival at its handler to the reply.");
	for (size_t i = 0; i < qms_method_count; i++)
		print_method(&service->metrics.methods[i], qms_methods[i].name, out);
}

void qms_metrics_print(struct qms_service *service, FILE *out)
{
	print_node(service, out);
	print_store(service, out);
	print_pools(service, out);
	print_transports(service, out);
	print_rpc(service, out);
}
