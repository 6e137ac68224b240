/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Command-line flags and one configuration file, from one table. Precedence:
 * flag, then file, then the value the target already had. The file is INI
 * without sections ("pool-size = 4GiB"), its keys are the flag names.
 */
#ifndef QMC_OPTIONS_H
#define QMC_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <qmla/status.h>

enum qmc_option_kind {
	QMC_OPTION_STRING, /**< char *: malloc'ed copy, the old value is freed */
	QMC_OPTION_LIST,   /**< char *: as STRING; given again, joined with ',' */
	/** char *: every value that was given, each with its zero byte, and one more zero byte */
	QMC_OPTION_STRINGS,
	QMC_OPTION_BOOL,     /**< bool: --name or --no-name; "true"/"false" in the file */
	QMC_OPTION_UNSIGNED, /**< uint64_t within [min, max] */
	QMC_OPTION_BYTES,    /**< uint64_t: 4096, 64KiB, 1.5GiB; within [min, max] */
	QMC_OPTION_DURATION, /**< int64_t nanoseconds: 500ms, 2s, 5m; min and max in ns */
	QMC_OPTION_REAL,     /**< double */
};

struct qmc_option {
	const char *name; /**< without dashes */
	char letter;      /**< short form, 0: none */
	enum qmc_option_kind kind;
	void *target;        /**< of the type that the kind names */
	const char *metavar; /**< shown in the help, NULL for BOOL */
	const char *help;
	uint64_t min;
	uint64_t max;    /**< 0: no upper limit */
	bool reloadable; /**< may change on SIGHUP */
};

struct qmc_options {
	const char *program;  /**< "qmla-node" or "qmla lookup" */
	const char *synopsis; /**< "[flags] KEY…" */
	const char *summary;  /**< paragraph(s) under the usage line */
	const char *epilogue; /**< examples and exit codes, NULL: none */
	const struct qmc_option *table;
	size_t count;
	int max_operands; /**< 0: any number, QMC_OPERANDS_NONE, or a limit */
};

#define QMC_OPERANDS_NONE (-1)

enum qmc_options_result { QMC_OPTIONS_RUN, QMC_OPTIONS_EXIT_OK, QMC_OPTIONS_EXIT_USAGE };

/**
 * Parses @p argv (argv[0] is skipped). --help prints to standard output and
 * gives EXIT_OK; an error is printed to standard error with the flag's name
 * and gives EXIT_USAGE. --config FILE is built in when the table has "config".
 * Flags may stand behind operands (argv is reordered); @p first_operand is the
 * index of the first operand.
 * Not thread-safe (getopt_long).
 */
enum qmc_options_result qmc_options_parse(const struct qmc_options *options, int argc, char **argv,
					  int *first_operand);

/**
 * Reads @p path again and applies the reloadable entries; others that differ
 * are named in the log and left alone. Nothing changes on an error.
 */
qmla_status_t qmc_options_reload(const struct qmc_options *options, const char *path);

/** Prints usage, summary, the table's flags and the epilogue. */
void qmc_options_print_help(const struct qmc_options *options, FILE *out);

/** Frees STRING, LIST and STRINGS targets and sets them to NULL. */
void qmc_options_release(const struct qmc_options *options);

/** "4096", "64KiB", "1.5GiB", "2G" (binary units). */
qmla_status_t qmc_parse_bytes(const char *text, uint64_t *bytes);

/** "250ms", "2s", "1.5m", "1h"; a bare number is seconds. */
qmla_status_t qmc_parse_duration(const char *text, int64_t *ns);

#endif /* QMC_OPTIONS_H */
