/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/command.h"

#include <stdio.h>

#include "common/digest.h"

int qmw_command_open_exit(qmla_status_t status)
{
	return status == QMLA_ERR_INVALID_ARGUMENT || status == QMLA_ERR_UNSUPPORTED
		       ? QMW_EXIT_USAGE
		       : QMW_EXIT_FAILED;
}

int qmw_command_run(const struct qmc_options *options, int argc, char **argv,
		    struct qmw_target *target, enum qmw_target_need need, qmw_command_func_t work,
		    void *user)
{
	int operand, code = QMW_EXIT_USAGE;
	enum qmc_options_result result = qmc_options_parse(options, argc, argv, &operand);
	qmla_status_t status = QMLA_OK;

	if (result == QMC_OPTIONS_EXIT_OK)
		code = QMW_EXIT_OK;
	if (result == QMC_OPTIONS_RUN && target)
		status = qmw_target_open(target, options->program, need, NULL);
	if (status != QMLA_OK)
		code = qmw_command_open_exit(status);
	else if (result == QMC_OPTIONS_RUN)
		code = work(user, argc - operand, argv + operand);
	if (target)
		qmw_target_close(target);
	qmc_options_release(options);
	return code;
}

int qmw_command_print_key(const qmla_key_t *key, qmla_status_t status, bool json)
{
	char text[2 * sizeof(key->bytes) + 1];

	qmc_hex_encode(key->bytes, sizeof(key->bytes), text);
	if (json)
		printf("{\"key\":\"%s\",\"status\":\"%s\"}\n", text, qmla_status_name(status));
	else
		printf("%s  %s\n", text, qmla_status_name(status));
	return qmw_exit_of(status);
}
