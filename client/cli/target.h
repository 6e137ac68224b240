/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Which cache a command talks to: nodes, identity, layout. The flags are the same
 * for every command; identity and layout are given as such or taken from a model.
 */
#ifndef QMW_TARGET_H
#define QMW_TARGET_H

#include <qmla/cache.h>

#include "common/options.h"

struct qmw_target {
	char *config;
	char *nodes;
	char *identity;
	char *layout;
	char *model;
	char *transport;
	char *log_level;
	char *tls_ca, *tls_certificate, *tls_key;
	int64_t timeout_ns;
	bool json;

	/* What the flags amount to, after qmw_target_open. */
	qmla_identity_t identity_bytes;
	qmla_layout_t layout_value;
	qmla_client_t *client;
};

#define QMW_TARGET_DEFAULT                                                                         \
	{                                                                                          \
		.timeout_ns = INT64_C(5000000000)                                                  \
	}

/** Entries of every command's table; @p t is a struct qmw_target. */
#define QMW_TARGET_NODE_OPTIONS(t)                                                                 \
	{"nodes",                                                                                  \
	 'n',                                                                                      \
	 QMC_OPTION_LIST,                                                                          \
	 &(t).nodes,                                                                               \
	 "LIST",                                                                                   \
	 "[name=]host:port[*weight],…; default $QMLA_NODES, else 127.0.0.1:7600",                  \
	 0,                                                                                        \
	 0,                                                                                        \
	 false},                                                                                   \
		{"timeout",                                                                        \
		 't',                                                                              \
		 QMC_OPTION_DURATION,                                                              \
		 &(t).timeout_ns,                                                                  \
		 "TIME",                                                                           \
		 "for each operation, default 5s",                                                 \
		 1000000,                                                                          \
		 UINT64_C(3600000000000),                                                          \
		 false},                                                                           \
		{"config",    0,      QMC_OPTION_STRING,                                           \
		 &(t).config, "FILE", "read flags from FILE ('nodes = …' a line)",                 \
		 0,           0,      false},                                                      \
		{"tls-ca",    0,      QMC_OPTION_STRING,                                           \
		 &(t).tls_ca, "FILE", "PEM of who signs the nodes; with the next two: mutual TLS", \
		 0,           0,      false},                                                      \
		{"tls-certificate",                                                                \
		 0,                                                                                \
		 QMC_OPTION_STRING,                                                                \
		 &(t).tls_certificate,                                                             \
		 "FILE",                                                                           \
		 "PEM of this client",                                                             \
		 0,                                                                                \
		 0,                                                                                \
		 false},                                                                           \
		{"tls-key",                                                                        \
		 0,                                                                                \
		 QMC_OPTION_STRING,                                                                \
		 &(t).tls_key,                                                                     \
		 "FILE",                                                                           \
		 "PEM key of the certificate",                                                     \
		 0,                                                                                \
		 0,                                                                                \
		 false},                                                                           \
		{"log-level",                                                                      \
		 0,                                                                                \
		 QMC_OPTION_STRING,                                                                \
		 &(t).log_level,                                                                   \
		 "LEVEL",                                                                          \
		 "error, warn, info, debug or trace; default warn",                                \
		 0,                                                                                \
		 0,                                                                                \
		 false},                                                                           \
	{                                                                                          \
		"json", 0, QMC_OPTION_BOOL, &(t).json, NULL, "print JSON, one object a line", 0,   \
			0, false                                                                   \
	}

#define QMW_TARGET_OPTIONS(t)                                                                      \
	QMW_TARGET_NODE_OPTIONS(t),                                                                \
		{"model",    'm',   QMC_OPTION_STRING,                                             \
		 &(t).model, "DIR", "take identity and layout from the checkpoint in DIR",         \
		 0,          0,     false},                                                        \
		{"identity",                                                                       \
		 'i',                                                                              \
		 QMC_OPTION_STRING,                                                                \
		 &(t).identity,                                                                    \
		 "HEX",                                                                            \
		 "64 hex digits ('qmla model inspect' prints them)",                               \
		 0,                                                                                \
		 0,                                                                                \
		 false},                                                                           \
		{"layout",                                                                         \
		 'l',                                                                              \
		 QMC_OPTION_STRING,                                                                \
		 &(t).layout,                                                                      \
		 "SPEC",                                                                           \
		 "FORMAT:LAYERS:DC:DR, e.g. c4r4:27:512:64; with --model only FORMAT",             \
		 0,                                                                                \
		 0,                                                                                \
		 false},                                                                           \
	{                                                                                          \
		"transport", 0, QMC_OPTION_STRING, &(t).transport, "NAME",                         \
			"auto, verbs, shm or tcp; default auto", 0, 0, false                       \
	}

/** What a command needs to know of the cache. */
enum qmw_target_need {
	QMW_TARGET_NODES,  /**< the nodes alone */
	QMW_TARGET_BLOCKS, /**< identity and layout too */
};

/**
 * Works out identity and layout, makes the client. Prints what is missing or
 * wrong under @p program's name: QMLA_ERR_INVALID_ARGUMENT is wrong usage. With
 * an identity from a block's header in @p known (may be NULL), --identity is not
 * needed and must agree.
 */
qmla_status_t qmw_target_open(struct qmw_target *target, const char *program,
			      enum qmw_target_need need, const qmla_identity_t *known);

/** Closes the client. Accepts a target that was never opened. */
void qmw_target_close(struct qmw_target *target);

/** The list of nodes: the flag, else $QMLA_NODES, else the default. */
const char *qmw_target_nodes(const struct qmw_target *target);

/** The timeout flag in milliseconds. */
uint32_t qmw_target_timeout_ms(const struct qmw_target *target);

/** Parses "c4r4:27:512:64". QMLA_ERR_FORMAT. */
qmla_status_t qmw_target_parse_layout(const char *text, qmla_layout_t *layout);

#endif /* QMW_TARGET_H */
