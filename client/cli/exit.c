/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/exit.h"

int qmw_exit_of(qmla_status_t status)
{
	switch (status) {
	case QMLA_OK:
	case QMLA_ERR_ALREADY_EXISTS:
		return QMW_EXIT_OK;
	case QMLA_ERR_UNAVAILABLE:
	case QMLA_ERR_DEADLINE:
		return QMW_EXIT_UNREACHABLE;
	default:
		return QMW_EXIT_FAILED;
	}
}

int qmw_exit_join(int a, int b)
{
	return a > b ? a : b;
}
