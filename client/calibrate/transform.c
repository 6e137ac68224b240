/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/transform.h"

#include <stdlib.h>
#include <string.h>

void qmw_transform_free(struct qmw_transform *transform)
{
	free(transform->rotation);
	free(transform->content_scale);
	free(transform->rope_angle);
	free(transform->rope_scale);
	free(transform->content_mean);
	free(transform->rope_mean);
	free(transform->content_feedback);
	free(transform->content_weight);
	free(transform->rope_feedback);
	free(transform->rope_weight);
	free(transform->cross_feedback);
	memset(transform, 0, sizeof(*transform));
}
