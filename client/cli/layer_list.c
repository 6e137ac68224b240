/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/layer_list.h"

#include <string.h>

/* A number below @p count without sign or space; moves @p text behind it. */
static bool read_layer(const char **text, uint32_t count, uint32_t *layer)
{
	uint32_t value = 0;
	const char *at = *text;

	for (; *at >= '0' && *at <= '9'; at++) {
		value = value * 10 + (uint32_t)(*at - '0');
		if (value >= count)
			return false;
	}
	if (at == *text)
		return false;
	*layer = value;
	*text = at;
	return true;
}

qmla_status_t qmw_layer_list_parse(const char *text, uint32_t count, bool *chosen)
{
	memset(chosen, 0, count * sizeof(*chosen));
	for (;;) {
		uint32_t first, last;

		if (!read_layer(&text, count, &first))
			return QMLA_ERR_INVALID_ARGUMENT;
		last = first;
		if (*text == '-') {
			text++;
			if (!read_layer(&text, count, &last) || last < first)
				return QMLA_ERR_INVALID_ARGUMENT;
		}
		memset(chosen + first, true, (last - first + 1) * sizeof(*chosen));
		if (*text == '\0')
			return QMLA_OK;
		if (*text++ != ',')
			return QMLA_ERR_INVALID_ARGUMENT;
	}
}
