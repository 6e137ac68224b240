/* SPDX-License-Identifier: Apache-2.0 */
/** @file The server that the transport's fuzz targets attack: one region with guards around it. */
#ifndef TRANSPORT_SERVER_H
#define TRANSPORT_SERVER_H

#include "transport/blob.h"

#define VICTIM_REGION 1
#define VICTIM_BYTES  4096

/** Starts it once, with the back end @p name; later calls return the same. */
const struct qmt_identity *victim_start(const char *name, char text[QMT_ADDRESS_TEXT_MAX]);

/**
 * Waits until every access was finished, and aborts when one was finished twice
 * or not within two seconds, or when a guard byte changed.
 */
void victim_check(void);

#endif /* TRANSPORT_SERVER_H */
