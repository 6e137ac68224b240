/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdlib.h>

#include "server/node.h"

/* Before any thread exists: all of them inherit the mask, and the main one waits for the signals.
 */
static void prepare_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a pool over the limit of file sizes is an error, not a death */
}

int main(int argc, char **argv)
{
	struct qms_node_options options;
	int status;

	prepare_signals();
	switch (qms_node_options_parse(&options, argc, argv)) {
	case QMC_OPTIONS_RUN:
		status = qms_node_run(&options);
		break;
	case QMC_OPTIONS_EXIT_OK:
		status = EXIT_SUCCESS;
		break;
	default:
		status = 2;
		break;
	}
	qms_node_options_release(&options);
	return status;
}
