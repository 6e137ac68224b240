/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/code.h"

#include "common/status.h"

Qmla__V1__Code qmp_code_from_status(qmla_status_t status)
{
	if (!qmc_status_is_known((int)status))
		return QMLA__V1__CODE__CODE_INTERNAL;
	return (Qmla__V1__Code)(-(int)status);
}

qmla_status_t qmp_status_from_code(Qmla__V1__Code code)
{
	/* Compared as a wide integer: a hostile INT_MIN must not be negated as int. */
	long long value = -(long long)(int)code;

	if (value > 0 || value < -99 || !qmc_status_is_known((int)value))
		return QMLA_ERR_INTERNAL;
	return (qmla_status_t)value;
}
