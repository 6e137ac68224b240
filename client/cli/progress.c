/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define PATIENCE_NS (2 * QMC_NS_PER_S)
#define BETWEEN_NS  (200 * QMC_NS_PER_MS)

void qmw_progress_start(struct qmw_progress *progress, uint64_t total)
{
	progress->next = qmc_clock_after(PATIENCE_NS);
	progress->total = total;
	progress->terminal = isatty(STDERR_FILENO) == 1;
	progress->shown = false;
}

void qmw_progress_tell(struct qmw_progress *progress, uint64_t done)
{
	if (!progress->terminal || qmc_clock_now() < progress->next)
		return;
	fprintf(stderr, "\r%" PRIu64 " of %" PRIu64, done, progress->total);
	progress->next = qmc_clock_after(BETWEEN_NS);
	progress->shown = true;
}

void qmw_progress_end(struct qmw_progress *progress)
{
	if (progress->shown)
		fprintf(stderr, "\r\033[K");
	progress->shown = false;
}
