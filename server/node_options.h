/* SPDX-License-Identifier: Apache-2.0 */
/** @file Flags and configuration file of qmla-node. */
#ifndef QMS_NODE_OPTIONS_H
#define QMS_NODE_OPTIONS_H

#include "common/options.h"
#include "server/service.h"

struct qms_node_options {
	char *config, *node_id, *listen, *data_listen, *advertise, *shm_dir, *rdma_devices,
		*http_listen;
	char *port_file, *log_level, *log_format, *tls_ca, *tls_certificate, *tls_key;
	uint64_t pool_size, max_identities, max_batch_keys, rpc_threads, data_threads, max_peers;
	uint64_t max_leases, max_leased_slots, max_leased_percent, max_tickets, max_pins;
	uint64_t max_watchers, watch_ring;
	int64_t max_lease, default_lease, default_pin_ttl, max_pin_ttl, identity_idle;
	int64_t drain_timeout, idle_timeout, heartbeat;
	bool huge_pages, prefault, version;
};

/**
 * Fills @p options with the defaults, then the file, then the flags. Prints what
 * is wrong. Release with qms_node_options_release in every case.
 */
enum qmc_options_result qms_node_options_parse(struct qms_node_options *options, int argc,
					       char **argv);
void qms_node_options_release(struct qms_node_options *options);

/** Reads the configuration file again and checks it; logs what happened. */
qmla_status_t qms_node_options_reload(struct qms_node_options *options);

/** What the service takes from the options (borrowing their strings). @p tls is filled when TLS is
 * on. */
void qms_node_options_service(const struct qms_node_options *options, struct qmp_tls *tls,
			      struct qms_service_config *config);

#endif /* QMS_NODE_OPTIONS_H */
