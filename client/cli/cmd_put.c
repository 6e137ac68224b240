/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/blockfile.h"
#include "client/cli/cache_commands.h"
#include "client/cli/command.h"
#include "client/cli/progress.h"

#define PROGRAM "qmla put"

struct put {
	struct qmw_target target;
	void *block;
};

/* One file after the other: each block stands for itself, none is the prefix of another. */
static int put_file(struct put *put, const char *path)
{
	const void *blocks[1] = {put->block};
	qmla_identity_t identity;
	qmla_key_t key;
	qmla_status_t status = qmw_blockfile_peek(PROGRAM, path, &identity, &key);
	qmla_status_t outcome = QMLA_ERR_UNAVAILABLE;

	if (status == QMLA_OK)
		status = qmw_blockfile_read(PROGRAM, path, &put->target.layout_value,
					    &put->target.identity_bytes, put->block);
	if (status != QMLA_OK)
		return QMW_EXIT_FAILED;
	status = qmla_client_publish(put->target.client, &key, 1, blocks,
				     qmw_target_timeout_ms(&put->target), &outcome);
	if (status != QMLA_OK && status != outcome)
		outcome = status;
	(void)qmw_command_print_key(&key, outcome, put->target.json);
	if (outcome != QMLA_OK && outcome != QMLA_ERR_ALREADY_EXISTS)
		fprintf(stderr, "%s: %s was not published: %s\n", PROGRAM, path,
			qmla_status_text(outcome));
	return qmw_exit_of(outcome);
}

static int put_files(struct put *put, int count, char **paths)
{
	struct qmw_progress progress;
	int code = QMW_EXIT_OK;

	put->block = qmw_blockfile_memory(qmla_layout_block_bytes(&put->target.layout_value));
	if (!put->block)
		return QMW_EXIT_FAILED;
	qmw_progress_start(&progress, (uint64_t)count);
	for (int i = 0; i < count; i++) {
		code = qmw_exit_join(code, put_file(put, paths[i]));
		qmw_progress_tell(&progress, (uint64_t)i + 1);
	}
	qmw_progress_end(&progress);
	free(put->block);
	return code;
}

static int run_put(void *user, int count, char **paths)
{
	struct put *put = user;
	qmla_identity_t identity;
	qmla_key_t key;
	qmla_status_t status;

	if (count == 0) {
		fprintf(stderr, "%s: name the block files\n", PROGRAM);
		return QMW_EXIT_USAGE;
	}
	/* Whose blocks they are stands in the first one's header. */
	if (qmw_blockfile_peek(PROGRAM, paths[0], &identity, &key) != QMLA_OK)
		return QMW_EXIT_FAILED;
	status = qmw_target_open(&put->target, PROGRAM, QMW_TARGET_BLOCKS, &identity);
	if (status != QMLA_OK)
		return qmw_command_open_exit(status);
	return put_files(put, count, paths);
}

int qmw_cmd_put(int argc, char **argv)
{
	struct put put = {.target = QMW_TARGET_DEFAULT};
	const struct qmc_option table[] = {QMW_TARGET_OPTIONS(put.target)};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] FILE…",
		.summary = "Publishes block files (docs/format.md; 'qmla get' writes them). Each "
			   "is checked,\nevery page, before it is sent. The identity is taken from "
			   "the first file.",
		.epilogue = "Example: qmla put --layout c4r4:27:512:64 *.qmb\n" QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};
	int code = qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_BLOCKS, run_put, &put);

	qmw_target_close(&put.target);
	return code;
}
