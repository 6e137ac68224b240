/* SPDX-License-Identifier: Apache-2.0 */
#include <grpc/support/log.h>
#include <string.h>

#include "common/log.h"
#include "proto/accept_watch.h"
#include "proto/rpc_runtime.h"

/*
 * What gRPC calls an error is nearly always one that a call of ours reports in
 * its own words a moment later, so its log is for debugging. A refused TLS
 * handshake is the exception: on the server no call ever tells of it.
 */
static void log_from_grpc(gpr_log_func_args *args)
{
	if (strstr(args->message, "Handshake failed with fatal error"))
		qmc_warn_limited("rpc",
				 "a TLS handshake failed (wrong or missing certificate?): %s",
				 args->message);
	else if (strstr(args->message, "Failed accept4"))
		qmp_accept_watch_note(); /* its caller says what it does about it */
	else
		qmc_debug("grpc", "%s:%d %s", args->file, args->line, args->message);
}

void qmp_log_redirect(void)
{
	gpr_set_log_function(log_from_grpc);
}
