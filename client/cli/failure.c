/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/failure.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>

#include "client/cli/text.h"

#define TEXT_MAX 1024

void qmw_failure_print(const char *program, bool json, qmla_status_t status, const char *format,
		       ...)
{
	char text[TEXT_MAX];
	va_list arguments;
	json_t *line;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fflush(stdout);
	fprintf(stderr, "%s: %s (%s)\n", program, text, qmla_status_name(status));
	if (!json)
		return;
	line = json_pack("{s:o,s:s}", "error", qmw_text_json(text, strlen(text)), "status",
			 qmla_status_name(status));
	json_dumpf(line, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
	puts("");
	json_decref(line);
}

qmla_status_t qmw_output_flush(const char *program)
{
	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return QMLA_OK;
	fprintf(stderr, "%s: cannot write to standard output: %s\n", program,
		errno ? strerror(errno) : "an earlier write failed");
	/* It has been said; whoever flushes later has nothing to say any more. */
	__fpurge(stdout);
	clearerr(stdout);
	return QMLA_ERR_IO;
}
