/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options.h"

#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/status.h"

#define NEGATED   0x10000
#define LONG_BASE 0x1000

struct unit {
	const char *suffix;
	double factor;
};

static qmla_status_t parse_scaled(const char *text, const struct unit *units, double *value)
{
	char *end;
	double number;

	errno = 0;
	number = strtod(text, &end);
	if (end == text || errno || !isfinite(number) || number < 0)
		return QMLA_ERR_INVALID_ARGUMENT;
	for (; units->suffix; units++) {
		if (strcmp(end, units->suffix) == 0) {
			*value = number * units->factor;
			return QMLA_OK;
		}
	}
	return QMLA_ERR_INVALID_ARGUMENT;
}

qmla_status_t qmc_parse_bytes(const char *text, uint64_t *bytes)
{
	static const struct unit units[] = {
		{"", 1},       {"B", 1},        {"K", 0x1p10}, {"KiB", 0x1p10},
		{"M", 0x1p20}, {"MiB", 0x1p20}, {"G", 0x1p30}, {"GiB", 0x1p30},
		{"T", 0x1p40}, {"TiB", 0x1p40}, {NULL, 0},
	};
	double value;
	qmla_status_t status = parse_scaled(text, units, &value);

	if (status != QMLA_OK || value >= 0x1p63)
		return QMLA_ERR_INVALID_ARGUMENT;
	*bytes = (uint64_t)value;
	return QMLA_OK;
}

qmla_status_t qmc_parse_duration(const char *text, int64_t *ns)
{
	static const struct unit units[] = {
		{"", 1e9},  {"ns", 1},   {"us", 1e3},   {"ms", 1e6},
		{"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {NULL, 0},
	};
	double value;
	qmla_status_t status = parse_scaled(text, units, &value);

	if (status != QMLA_OK || value >= 0x1p62)
		return QMLA_ERR_INVALID_ARGUMENT;
	*ns = (int64_t)value;
	return QMLA_OK;
}

static qmla_status_t parse_unsigned(const char *text, uint64_t *value)
{
	char *end;
	unsigned long long number;

	if (text[0] < '0' || text[0] > '9')
		return QMLA_ERR_INVALID_ARGUMENT;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || *end)
		return QMLA_ERR_INVALID_ARGUMENT;
	*value = number;
	return QMLA_OK;
}

static bool in_range(const struct qmc_option *option, uint64_t value)
{
	return value >= option->min && (option->max == 0 || value <= option->max);
}

static qmla_status_t assign_string(char **target, const char *text, bool join)
{
	char *copy;

	if (join && *target) {
		size_t size = strlen(*target) + strlen(text) + 2;

		copy = malloc(size);
		if (copy)
			snprintf(copy, size, "%s,%s", *target, text);
	} else {
		copy = strdup(text);
	}
	if (!copy)
		return QMLA_ERR_NO_MEMORY;
	free(*target);
	*target = copy;
	return QMLA_OK;
}

static qmla_status_t assign_number(const struct qmc_option *option, const char *text)
{
	uint64_t value = 0;
	int64_t ns = 0;
	qmla_status_t status;

	if (option->kind == QMC_OPTION_DURATION) {
		status = qmc_parse_duration(text, &ns);
		value = (uint64_t)ns;
	} else if (option->kind == QMC_OPTION_BYTES) {
		status = qmc_parse_bytes(text, &value);
	} else {
		status = parse_unsigned(text, &value);
	}
	if (status != QMLA_OK || !in_range(option, value))
		return QMLA_ERR_INVALID_ARGUMENT;
	if (option->kind == QMC_OPTION_DURATION)
		*(int64_t *)option->target = ns;
	else
		*(uint64_t *)option->target = value;
	return QMLA_OK;
}

static qmla_status_t assign_bool(bool *target, const char *text)
{
	if (strcmp(text, "true") == 0 || strcmp(text, "yes") == 0 || strcmp(text, "1") == 0)
		*target = true;
	else if (strcmp(text, "false") == 0 || strcmp(text, "no") == 0 || strcmp(text, "0") == 0)
		*target = false;
	else
		return QMLA_ERR_INVALID_ARGUMENT;
	return QMLA_OK;
}

static qmla_status_t assign_real(double *target, const char *text)
{
	char *end;
	double value;

	errno = 0;
	value = strtod(text, &end);
	if (end == text || *end || errno || !isfinite(value))
		return QMLA_ERR_INVALID_ARGUMENT;
	*target = value;
	return QMLA_OK;
}

static qmla_status_t assign(const struct qmc_option *option, const char *text, bool join)
{
	switch (option->kind) {
	case QMC_OPTION_STRING:
		return assign_string(option->target, text, false);
	case QMC_OPTION_LIST:
		return assign_string(option->target, text, join);
	case QMC_OPTION_BOOL:
		return assign_bool(option->target, text);
	case QMC_OPTION_REAL:
		return assign_real(option->target, text);
	case QMC_OPTION_UNSIGNED:
	case QMC_OPTION_BYTES:
	case QMC_OPTION_DURATION:
		return assign_number(option, text);
	}
	return QMLA_ERR_INTERNAL;
}

static const char *expectation(enum qmc_option_kind kind)
{
	switch (kind) {
	case QMC_OPTION_BYTES:
		return "a size such as 4096, 64KiB or 2GiB";
	case QMC_OPTION_DURATION:
		return "a time such as 500ms, 2s or 5m";
	case QMC_OPTION_UNSIGNED:
		return "a whole number";
	case QMC_OPTION_BOOL:
		return "true or false";
	case QMC_OPTION_REAL:
		return "a number";
	case QMC_OPTION_STRING:
	case QMC_OPTION_LIST:
		break;
	}
	return "text";
}

static void complain(const struct qmc_options *options, const struct qmc_option *option,
		     const char *where, const char *text)
{
	fprintf(stderr, "%s: %s%s: '%s' will not do, expected %s", options->program, where,
		option->name, text, expectation(option->kind));
	if (option->min || option->max)
		fprintf(stderr, " from %llu", (unsigned long long)option->min);
	if (option->max)
		fprintf(stderr, " to %llu", (unsigned long long)option->max);
	fprintf(stderr, "%s\n", option->kind == QMC_OPTION_DURATION && option->max ? " (ns)" : "");
}

static const struct qmc_option *find(const struct qmc_options *options, const char *name)
{
	for (size_t i = 0; i < options->count; i++) {
		if (strcmp(options->table[i].name, name) == 0)
			return &options->table[i];
	}
	return NULL;
}

struct file_pass {
	const struct qmc_options *options;
	const bool
		*given; /**< set on the command line: the file does not override; NULL on reload */
	bool dry_run;
	bool failed;
};

/* Checks a value without keeping it. */
static bool acceptable(const struct qmc_option *option, const char *text)
{
	union {
		char *string;
		bool flag;
		uint64_t number;
		int64_t ns;
		double real;
	} scratch = {0};
	struct qmc_option probe = *option;
	qmla_status_t status;

	probe.target = &scratch;
	status = assign(&probe, text, false);
	if (option->kind == QMC_OPTION_STRING || option->kind == QMC_OPTION_LIST)
		free(scratch.string);
	return status == QMLA_OK;
}

static int on_entry(void *user, const char *section, const char *name, const char *value)
{
	struct file_pass *pass = user;
	const struct qmc_option *option = find(pass->options, name);
	size_t index;

	if (section[0] || !option || strcmp(name, "config") == 0) {
		fprintf(stderr, "%s: configuration file: unknown key '%s%s%s'\n",
			pass->options->program, section, section[0] ? "." : "", name);
		pass->failed = true;
		return 0;
	}
	if (!acceptable(option, value)) {
		complain(pass->options, option, "configuration file: ", value);
		pass->failed = true;
		return 0;
	}
	index = (size_t)(option - pass->options->table);
	if (pass->dry_run || (pass->given && pass->given[index]))
		return 1;
	if (!pass->given && !option->reloadable)
		return 1;
	return assign(option, value, false) == QMLA_OK;
}

static qmla_status_t read_file(const struct qmc_options *options, const char *path,
			       const bool *given)
{
	struct file_pass pass = {.options = options, .given = given, .dry_run = true};
	int rc = ini_parse(path, on_entry, &pass);

	if (rc == 0) {
		pass.dry_run = false;
		rc = ini_parse(path, on_entry, &pass);
	}
	if (rc == 0)
		return QMLA_OK;
	if (rc == -1)
		fprintf(stderr, "%s: cannot open configuration file %s\n", options->program, path);
	else if (!pass.failed)
		fprintf(stderr, "%s: %s: line %d is not 'name = value'\n", options->program, path,
			rc);
	return rc == -1 ? QMLA_ERR_NOT_FOUND : QMLA_ERR_FORMAT;
}

qmla_status_t qmc_options_reload(const struct qmc_options *options, const char *path)
{
	return read_file(options, path, NULL);
}

static void print_option(const struct qmc_option *option, FILE *out)
{
	char left[64];
	char letter[8] = "    ";

	if (option->letter)
		snprintf(letter, sizeof(letter), "-%c, ", option->letter);
	snprintf(left, sizeof(left), "%s--%s%s%s", letter, option->name, option->metavar ? " " : "",
		 option->metavar ? option->metavar : "");
	if (strlen(left) > 30)
		fprintf(out, "  %s\n  %-30s  %s\n", left, "", option->help);
	else
		fprintf(out, "  %-30s  %s\n", left, option->help);
}

void qmc_options_print_help(const struct qmc_options *options, FILE *out)
{
	static const struct qmc_option help = {
		.name = "help", .letter = 'h', .help = "show this text"};

	fprintf(out, "Usage: %s %s\n\n%s\n\nFlags:\n", options->program, options->synopsis,
		options->summary);
	for (size_t i = 0; i < options->count; i++)
		print_option(&options->table[i], out);
	print_option(&help, out);
	if (options->epilogue)
		fprintf(out, "\n%s\n", options->epilogue);
}

struct parse_tables {
	struct option *longs;
	char *shorts;
	bool *given;
};

static void tables_free(struct parse_tables *t)
{
	free(t->longs);
	free(t->shorts);
	free(t->given);
}

static bool tables_build(const struct qmc_options *options, char (*negations)[64],
			 struct parse_tables *t)
{
	size_t n = 0;
	char *s;

	t->longs = calloc(2 * options->count + 2, sizeof(*t->longs));
	t->shorts = calloc(2 * options->count + 4, 1);
	t->given = calloc(options->count + 1, sizeof(*t->given));
	if (!t->longs || !t->shorts || !t->given)
		return false;
	s = t->shorts;
	*s++ = '+'; /* stop at the first operand */
	*s++ = 'h';
	for (size_t i = 0; i < options->count; i++) {
		const struct qmc_option *o = &options->table[i];
		bool flag = o->kind == QMC_OPTION_BOOL;

		t->longs[n++] = (struct option){o->name, flag ? no_argument : required_argument,
						NULL, (int)(LONG_BASE + i)};
		if (flag) {
			snprintf(negations[i], sizeof(negations[i]), "no-%s", o->name);
			t->longs[n++] = (struct option){negations[i], no_argument, NULL,
							(int)(LONG_BASE + i) | NEGATED};
		}
		if (o->letter) {
			*s++ = o->letter;
			if (!flag)
				*s++ = ':';
		}
	}
	t->longs[n] = (struct option){"help", no_argument, NULL, 'h'};
	return true;
}

static const struct qmc_option *by_code(const struct qmc_options *options, int code)
{
	if ((code & ~NEGATED) >= LONG_BASE)
		return &options->table[(code & ~NEGATED) - LONG_BASE];
	for (size_t i = 0; i < options->count; i++) {
		if (options->table[i].letter == code)
			return &options->table[i];
	}
	return NULL;
}

static enum qmc_options_result parse_flags(const struct qmc_options *options, int argc, char **argv,
					   struct parse_tables *t)
{
	int code;

	optind = 0; /* glibc: start over, also for a second table in one process */
	opterr = 1;
	while ((code = getopt_long(argc, argv, t->shorts, t->longs, NULL)) != -1) {
		const struct qmc_option *option;
		const char *text = optarg;
		size_t index;

		if (code == 'h') {
			qmc_options_print_help(options, stdout);
			return QMC_OPTIONS_EXIT_OK;
		}
		option = code == '?' ? NULL : by_code(options, code);
		if (!option) {
			fprintf(stderr, "Try '%s --help'.\n", options->program);
			return QMC_OPTIONS_EXIT_USAGE;
		}
		index = (size_t)(option - options->table);
		if (option->kind == QMC_OPTION_BOOL)
			text = code & NEGATED ? "false" : "true";
		if (assign(option, text, t->given[index]) != QMLA_OK) {
			complain(options, option, "--", text);
			return QMC_OPTIONS_EXIT_USAGE;
		}
		t->given[index] = true;
	}
	return QMC_OPTIONS_RUN;
}

enum qmc_options_result qmc_options_parse(const struct qmc_options *options, int argc, char **argv,
					  int *first_operand)
{
	const struct qmc_option *config = find(options, "config");
	struct parse_tables tables = {0};
	char(*negations)[64] = calloc(options->count + 1, sizeof(*negations));
	enum qmc_options_result result = QMC_OPTIONS_EXIT_USAGE;

	if (!negations || !tables_build(options, negations, &tables)) {
		fprintf(stderr, "%s: out of memory\n", options->program);
		goto out;
	}
	result = parse_flags(options, argc, argv, &tables);
	if (result != QMC_OPTIONS_RUN)
		goto out;
	*first_operand = optind;
	if (config && *(char **)config->target &&
	    read_file(options, *(char **)config->target, tables.given) != QMLA_OK)
		result = QMC_OPTIONS_EXIT_USAGE;
out:
	tables_free(&tables);
	free(negations);
	return result;
}

void qmc_options_release(const struct qmc_options *options)
{
	for (size_t i = 0; i < options->count; i++) {
		const struct qmc_option *option = &options->table[i];

		if (option->kind == QMC_OPTION_STRING || option->kind == QMC_OPTION_LIST) {
			free(*(char **)option->target);
			*(char **)option->target = NULL;
		}
	}
}
