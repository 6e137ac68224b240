/* SPDX-License-Identifier: Apache-2.0 */
/** @file The flags of qmla-worker. Not thread-safe. */
#ifndef QMW_OPTIONS_H
#define QMW_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

#include "client/worker/worker.h"
#include "common/options.h"
#include "proto/rpc_client.h"

/** Values of the flags; strings are malloc'ed, freed by qmw_options_release. */
struct qmw_flags {
	char *config, *model, *format, *nodes, *prefill, *listen, *http_listen, *port_file;
	char *name_space, *transport, *log_level, *log_format;
	char *tls_ca, *tls_certificate, *tls_key;
	uint64_t pool_size, max_batch, max_waiting, chunk, threads, replicas, prefill_min_blocks;
	int64_t fetch_timeout, prefill_timeout, queue_timeout, request_timeout, drain_timeout;
	bool local_reuse, ignore_calibration;
	struct qmp_tls tls; /**< what the three files amount to */
};

/**
 * Parses "qmla-worker ROLE [flags]" and fills @p config from it and @p flags,
 * which keeps the strings alive. Errors are printed with the flag's name.
 */
enum qmc_options_result qmw_options_parse(int argc, char **argv, struct qmw_flags *flags,
					  struct qmw_worker_config *config);

/** Reads the configuration file again: only the log's level and format change. */
void qmw_options_reload(struct qmw_flags *flags);

void qmw_options_release(struct qmw_flags *flags);

#endif /* QMW_OPTIONS_H */
