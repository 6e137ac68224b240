/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options.h"

#include <getopt.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "common/options_value.h"

#define NEGATED   0x10000
#define LONG_BASE 0x1000

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
	case QMC_OPTION_STRINGS:
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
	if (!qmc_option_acceptable(option, value)) {
		complain(pass->options, option, "configuration file: ", value);
		pass->failed = true;
		return 0;
	}
	index = (size_t)(option - pass->options->table);
	if (pass->dry_run || (pass->given && pass->given[index]))
		return 1;
	if (!pass->given && !option->reloadable)
		return 1;
	return qmc_option_assign(option, value, false) == QMLA_OK;
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
		if (qmc_option_assign(option, text, t->given[index]) != QMLA_OK) {
			complain(options, option, "--", text);
			return QMC_OPTIONS_EXIT_USAGE;
		}
		t->given[index] = true;
	}
	return QMC_OPTIONS_RUN;
}

static bool too_many_operands(const struct qmc_options *options, int count)
{
	if (options->max_operands == QMC_OPERANDS_NONE)
		return count > 0;
	return options->max_operands > 0 && count > options->max_operands;
}

enum qmc_options_result qmc_options_parse(const struct qmc_options *options, int argc, char **argv,
					  int *first_operand)
{
	const struct qmc_option *config = find(options, "config");
	char *name = argv[0];
	struct parse_tables tables = {0};
	char(*negations)[64] = calloc(options->count + 1, sizeof(*negations));
	enum qmc_options_result result = QMC_OPTIONS_EXIT_USAGE;

	if (!negations || !tables_build(options, negations, &tables)) {
		fprintf(stderr, "%s: out of memory\n", options->program);
		goto out;
	}
	argv[0] = (char *)options->program; /* what getopt_long calls itself in its errors */
	result = parse_flags(options, argc, argv, &tables);
	argv[0] = name;
	if (result != QMC_OPTIONS_RUN)
		goto out;
	*first_operand = optind;
	if (too_many_operands(options, argc - optind)) {
		fprintf(stderr, "%s: '%s' is one word too many\nTry '%s --help'.\n",
			options->program,
			argv[optind + (options->max_operands > 0 ? options->max_operands : 0)],
			options->program);
		result = QMC_OPTIONS_EXIT_USAGE;
		goto out;
	}
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

		if (qmc_option_is_text(option)) {
			free(*(char **)option->target);
			*(char **)option->target = NULL;
		}
	}
}
