/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the files behind device.h share. Any thread. */
#ifndef QMT_VERBS_DEVICE_INTERNAL_H
#define QMT_VERBS_DEVICE_INTERNAL_H

#include "transport/verbs/device.h"

/** Fills in the GID to use; false when there is none. */
bool qmt_gid_choose(const struct qmt_port *port, struct qmt_port_state *state);

#endif /* QMT_VERBS_DEVICE_INTERNAL_H */
