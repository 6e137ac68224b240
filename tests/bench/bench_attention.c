/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `qmla bench attention` measures, as a program of its own: it needs the kernels and
 * the CUDA runtime only. bench_attention [attend [HEADS] | pages | append]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/bench.h"

int main(int argc, char **argv)
{
	const char *part = argc > 1 ? argv[1] : NULL;

	if (!qmk_cuda_ops()) {
		puts("skipped: no CUDA device");
		return 77;
	}
	if (part && strcmp(part, "attend") != 0 && strcmp(part, "pages") != 0 &&
	    strcmp(part, "append") != 0) {
		fprintf(stderr, "bench_attention: '%s' is neither attend, pages nor append\n",
			part);
		return 2;
	}
	if (!part || strcmp(part, "pages") == 0)
		qmk_bench_pages();
	if (!part || strcmp(part, "append") == 0)
		qmk_bench_append();
	if (!part || strcmp(part, "attend") == 0)
		qmk_bench_attend(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0);
	return 0;
}
