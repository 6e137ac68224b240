/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options_value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* An empty value would read as the end. */
static qmla_status_t assign_strings(char **target, const char *text, bool join)
{
	size_t more = strlen(text) + 1, used = 0;
	char *all;

	if (!text[0])
		return QMLA_ERR_INVALID_ARGUMENT;
	while (join && *target && (*target)[used])
		used += strlen(*target + used) + 1;
	all = malloc(used + more + 1);
	if (!all)
		return QMLA_ERR_NO_MEMORY;
	if (used > 0)
		memcpy(all, *target, used);
	memcpy(all + used, text, more);
	all[used + more] = 0;
	free(*target);
	*target = all;
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

qmla_status_t qmc_option_assign(const struct qmc_option *option, const char *text, bool join)
{
	switch (option->kind) {
	case QMC_OPTION_STRING:
		return assign_string(option->target, text, false);
	case QMC_OPTION_LIST:
		return assign_string(option->target, text, join);
	case QMC_OPTION_STRINGS:
		return assign_strings(option->target, text, join);
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

bool qmc_option_is_text(const struct qmc_option *option)
{
	return option->kind == QMC_OPTION_STRING || option->kind == QMC_OPTION_LIST ||
	       option->kind == QMC_OPTION_STRINGS;
}

bool qmc_option_acceptable(const struct qmc_option *option, const char *text)
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
	status = qmc_option_assign(&probe, text, false);
	if (qmc_option_is_text(option))
		free(scratch.string);
	return status == QMLA_OK;
}
