/* SPDX-License-Identifier: Apache-2.0 */
/** @file The flags of mutual TLS for commands that talk to a worker or to any server. */
#ifndef QMW_TLS_H
#define QMW_TLS_H

#include <stdbool.h>

#include "common/options.h"
#include "proto/rpc_client.h"

/** Targets of the flags; zero-initialised, strings are freed by qmc_options_release. */
struct qmw_tls {
	char *ca, *certificate, *key;
	struct qmp_tls files;
};

/** Entries of a command's table; @p t is a struct qmw_tls. */
#define QMW_TLS_CA_OPTION(t)                                                                       \
	.name = "tls-ca", .kind = QMC_OPTION_STRING, .target = &(t).ca, .metavar = "FILE",         \
	.help = "PEM of who signs the servers; with the next two: mutual TLS"
#define QMW_TLS_CERTIFICATE_OPTION(t)                                                              \
	.name = "tls-certificate", .kind = QMC_OPTION_STRING, .target = &(t).certificate,          \
	.metavar = "FILE", .help = "PEM of this client"
#define QMW_TLS_KEY_OPTION(t)                                                                      \
	.name = "tls-key", .kind = QMC_OPTION_STRING, .target = &(t).key, .metavar = "FILE",       \
	.help = "PEM key of the certificate"

/** All three or none; says so under @p program's name otherwise. */
bool qmw_tls_check(const struct qmw_tls *tls, const char *program);

/** For a channel's config: NULL when no TLS is wanted. Lives as long as @p tls. */
const struct qmp_tls *qmw_tls_files(struct qmw_tls *tls);

#endif /* QMW_TLS_H */
