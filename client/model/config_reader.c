/* SPDX-License-Identifier: Apache-2.0 */
#include "client/model/config_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"

#define COMPONENT "model"

void qmw_reader_fail(struct qmw_reader *reader, qmla_status_t status, const char *key,
		     const char *what)
{
	if (reader->status)
		return;
	qmc_error(COMPONENT, "%s: \"%s\" %s", reader->label, key, what);
	reader->status = status;
}

const json_t *qmw_reader_value(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	return json_is_null(value) ? NULL : value;
}

uint32_t qmw_reader_count(struct qmw_reader *reader, const char *key, int64_t missing, uint32_t min,
			  uint32_t max)
{
	const json_t *value = qmw_reader_value(reader->root, key);
	json_int_t number = json_integer_value(value);
	char what[96];

	if (!value && missing >= 0)
		return (uint32_t)missing;
	if (!value) {
		qmw_reader_fail(reader, QMLA_ERR_FORMAT, key, "is missing");
		return 0;
	}
	if (!json_is_integer(value) || number < min || number > max) {
		snprintf(what, sizeof(what), "must be an integer from %" PRIu32 " to %" PRIu32, min,
			 max);
		qmw_reader_fail(reader, QMLA_ERR_FORMAT, key, what);
		return 0;
	}
	return (uint32_t)number;
}

void qmw_reader_no_null(struct qmw_reader *reader, const char *key)
{
	if (json_is_null(json_object_get(reader->root, key)))
		qmw_reader_fail(reader, QMLA_ERR_FORMAT, key,
				"is null, which is no number: write the model's own");
}

bool qmw_reader_flag(struct qmw_reader *reader, const char *key, bool missing)
{
	const json_t *value = qmw_reader_value(reader->root, key);

	if (!value)
		return missing;
	if (!json_is_boolean(value))
		qmw_reader_fail(reader, QMLA_ERR_FORMAT, key, "must be true or false");
	return json_is_true(value);
}

double qmw_reader_number(struct qmw_reader *reader, const json_t *object, const char *key,
			 double missing, double min, double max)
{
	const json_t *value = qmw_reader_value(object, key);
	double number = json_number_value(value);
	char what[96];

	if (!value && missing >= 0)
		return missing;
	if (!value) {
		qmw_reader_fail(reader, QMLA_ERR_FORMAT, key, "is missing");
		return 0;
	}
	if (!json_is_number(value) || !(number >= min && number <= max)) {
		snprintf(what, sizeof(what), "must be a number from %g to %g", min, max);
		qmw_reader_fail(reader, QMLA_ERR_FORMAT, key, what);
		return 0;
	}
	return number;
}

void qmw_reader_only(struct qmw_reader *reader, const char *key, const char *only)
{
	const json_t *value = qmw_reader_value(reader->root, key);
	const char *text = json_string_value(value);
	char what[160];

	if (!value || (text && strcmp(text, only) == 0))
		return;
	snprintf(what, sizeof(what), "is \"%.60s\"; only \"%s\" is supported",
		 text ? text : "no string", only);
	qmw_reader_fail(reader, text ? QMLA_ERR_UNSUPPORTED : QMLA_ERR_FORMAT, key, what);
}
