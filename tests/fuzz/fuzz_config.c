/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile config.json: what passes must give finite frequencies and a layout or a refusal. */
#include <math.h>
#include <stdlib.h>

#include "client/model/config.h"
#include "client/model/rope.h"
#include "common/log.h"
#include "kernels/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct qmw_config config;
	struct qmk_layout layout;
	struct qmw_rope rope;

	if (qmw_config_parse((const char *)data, size, "input", &config))
		return 0;
	qmw_rope_init(&config, &rope);
	for (uint32_t j = 0; j < config.rope_dim / 2; j++)
		if (!isfinite(rope.inv_freq[j]))
			abort();
	if (!isfinite(rope.amplitude) || !isfinite(rope.softmax_scale))
		abort();
	(void)qmk_layout_init(QMK_FORMAT_C4R4, config.layers, config.content_dim, config.rope_dim,
			      &layout);
	return 0;
}
