/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/blockfile.h"
#include "client/cli/cache_commands.h"
#include "client/cli/command.h"
#include "client/cli/keyargs.h"
#include "client/cli/progress.h"
#include "common/digest.h"
#include "kernels/block.h"

#define PROGRAM "qmla get"

struct get {
	struct qmw_target target;
	struct qmw_keyargs keys;
	char *output;
	char *directory;
	bool force;
	void *block;
	uint64_t bytes;
};

static qmla_status_t fetch_block(struct get *get, const qmla_key_t *key)
{
	void *blocks[1] = {get->block};
	qmla_status_t outcome = QMLA_ERR_NOT_FOUND;
	size_t prefix = 0;
	qmla_status_t status =
		qmla_client_fetch(get->target.client, key, 1, blocks,
				  qmw_target_timeout_ms(&get->target), &prefix, &outcome, NULL);

	return status != QMLA_OK ? status : outcome;
}

/* The generation is the node's affair: a file has none. */
static qmla_status_t write_block(struct get *get, const char *path)
{
	struct qmk_layout layout;
	const qmla_layout_t *l = &get->target.layout_value;
	qmla_status_t status = qmk_layout_init((enum qmk_format)l->format, l->layers,
					       l->content_dim, l->rope_dim, &layout);

	if (status != QMLA_OK)
		return status;
	qmk_block_set_generation(&layout, 0, get->block);
	return qmw_blockfile_write(PROGRAM, path, get->block, get->bytes, get->force);
}

static int get_key(struct get *get, const qmla_key_t *key)
{
	char name[2 * sizeof(key->bytes) + 1], path[4096];
	qmla_status_t status = fetch_block(get, key);

	qmc_hex_encode(key->bytes, sizeof(key->bytes), name);
	if (get->output)
		snprintf(path, sizeof(path), "%s", get->output);
	else
		snprintf(path, sizeof(path), "%s/%s.qmb", get->directory ? get->directory : ".",
			 name);
	if (status != QMLA_OK)
		fprintf(stderr, "%s: %s: %s\n", PROGRAM, name, qmla_status_text(status));
	else
		status = write_block(get, path);
	if (!get->output)
		(void)qmw_command_print_key(key, status, get->target.json);
	if (status == QMLA_ERR_ALREADY_EXISTS)
		return QMW_EXIT_FAILED; /* the file is, that is */
	return qmw_exit_of(status);
}

static int get_keys(struct get *get)
{
	struct qmw_progress progress;
	int code = QMW_EXIT_OK;

	if (get->output && get->keys.count != 1) {
		fprintf(stderr, "%s: --output takes one block, there are %zu; use --directory\n",
			PROGRAM, get->keys.count);
		return QMW_EXIT_USAGE;
	}
	get->bytes = qmla_layout_block_bytes(&get->target.layout_value);
	get->block = qmw_blockfile_memory(get->bytes);
	if (!get->block)
		return QMW_EXIT_FAILED;
	qmw_progress_start(&progress, get->keys.count);
	for (size_t i = 0; i < get->keys.count; i++) {
		code = qmw_exit_join(code, get_key(get, &get->keys.keys[i]));
		qmw_progress_tell(&progress, i + 1);
	}
	qmw_progress_end(&progress);
	free(get->block);
	return code;
}

static int run_get(void *user, int count, char **operands)
{
	struct get *get = user;
	int code = QMW_EXIT_USAGE;

	if (get->output && get->directory)
		fprintf(stderr, "%s: --output and --directory exclude each other\n", PROGRAM);
	else if (qmw_keyargs_resolve(&get->keys, PROGRAM, &get->target.identity_bytes, count,
				     operands) == QMLA_OK)
		code = get_keys(get);
	qmw_keyargs_release(&get->keys);
	return code;
}

int qmw_cmd_get(int argc, char **argv)
{
	struct get get = {.target = QMW_TARGET_DEFAULT};
	const struct qmc_option table[] = {
		{"output", 'o', QMC_OPTION_STRING, &get.output, "FILE",
		 "write the one block there; '-': standard output", 0, 0, false},
		{"directory", 'd', QMC_OPTION_STRING, &get.directory, "DIR",
		 "write KEY.qmb there for each block, default the current one", 0, 0, false},
		{"force", 'f', QMC_OPTION_BOOL, &get.force, NULL, "replace files", 0, 0, false},
		QMW_KEYARGS_OPTIONS(get.keys),
		QMW_TARGET_OPTIONS(get.target),
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] KEY… | --tokens FILE | --text FILE",
		.summary = "Fetches blocks, checks every page, and writes each to a file of its "
			   "own, whole or not at all.",
		.epilogue = "Example: qmla get --model checkpoints/mla-s --text prompt.txt -d "
			    "blocks\n" QMW_EXIT_HELP,
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
	};

	return qmw_command_run(&options, argc, argv, &get.target, QMW_TARGET_BLOCKS, run_get, &get);
}
