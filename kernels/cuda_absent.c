/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the place of kernels/cuda in a build without it. */
#include "kernels/ops.h"

const struct qmk_ops *qmk_cuda_ops(void)
{
	return NULL;
}
