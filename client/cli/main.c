/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include <qmla/cache.h>

#include "client/cli/cache_commands.h"
#include "client/cli/cmd_analyze.h"
#include "client/cli/cmd_calibrate.h"
#include "client/cli/cmd_eval.h"
#include "client/cli/cmd_generate.h"
#include "client/cli/cmd_health.h"
#include "client/cli/cmd_model.h"
#include "client/cli/exit.h"

/* A command is a line here and a file of its own. */
static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{"generate", qmw_cmd_generate, "send a prompt to a decode worker, stream what it writes"},
	{"status", qmw_cmd_status, "how every cache node is doing"},
	{"health", qmw_cmd_health, "ask nodes and workers whether they serve"},
	{"lookup", qmw_cmd_lookup, "which blocks the cache holds, and how long a prefix"},
	{"put", qmw_cmd_put, "publish block files"},
	{"get", qmw_cmd_get, "fetch blocks into files"},
	{"remove", qmw_cmd_remove, "remove blocks"},
	{"pin", qmw_cmd_pin, "keep blocks from eviction for a while"},
	{"unpin", qmw_cmd_unpin, "end a pin"},
	{"watch", qmw_cmd_watch, "print blocks as they come and go"},
	{"model", qmw_cmd_model, "inspect a checkpoint: identity, layout, cache size"},
	{"calibrate", qmw_cmd_calibrate, "learn and fuse the cache's transforms into a checkpoint"},
	{"eval", qmw_cmd_eval, "how good a cache is, on texts and recall prompts"},
	{"analyze", qmw_cmd_analyze, "why RoPE keys and latents bear quantisation differently"},
	{"bench", qmw_cmd_bench, "measure this machine, with the limit beside each figure"},
	{"version", qmw_cmd_version, "version, and what this build can do"},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *out)
{
	fprintf(out, "Usage: qmla COMMAND [flags] …\n\n"
		     "The command line of QuantMLA Cache.\n\nCommands:\n");
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
	fprintf(out,
		"\n'qmla COMMAND --help' says more. $QMLA_NODES may hold the list of nodes.\n"
		"%s\n",
		QMW_EXIT_HELP);
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < COMMAND_COUNT; i++) {
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	}
	return NULL;
}

/* "qmla help lookup" is "qmla lookup --help". */
static int run_help(int argc, char **argv)
{
	static char flag[] = "--help";
	const struct command *command = argc > 2 ? find_command(argv[2]) : NULL;
	char *words[] = {argc > 2 ? argv[2] : NULL, flag, NULL};

	if (command)
		return command->run(2, words);
	print_help(stdout);
	return QMW_EXIT_OK;
}

int main(int argc, char **argv)
{
	const struct command *command;
	int code;

	if (argc < 2) {
		print_help(stderr);
		return QMW_EXIT_USAGE;
	}
	if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
	    strcmp(argv[1], "-h") == 0)
		return run_help(argc, argv);
	command =
		strcmp(argv[1], "--version") == 0 ? find_command("version") : find_command(argv[1]);
	if (!command) {
		fprintf(stderr, "qmla: no command '%s'; 'qmla --help' lists them\n", argv[1]);
		return QMW_EXIT_USAGE;
	}
	code = command->run(argc - 1, argv + 1);
	/* A full disk behind standard output must not look like success. */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		perror("qmla: standard output");
		return code ? code : QMW_EXIT_FAILED;
	}
	return code;
}
