/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile quantmla.json. */
#include <stdlib.h>
#include <string.h>

#include "client/model/constants.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct qmw_constants constants = {0};

	if (qmw_constants_parse((const char *)data, size, "input", &constants))
		return 0;
	if (!constants.present || !memchr(constants.recipe, 0, sizeof(constants.recipe)) ||
	    (unsigned)constants.rotation > QMW_ROTATION_MATRIX)
		abort();
	qmw_constants_close(&constants);
	return 0;
}
