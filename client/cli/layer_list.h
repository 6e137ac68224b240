/* SPDX-License-Identifier: Apache-2.0 */
/** @file "0,3-5": some of a model's layers. Pure; any thread. */
#ifndef QMW_LAYER_LIST_H
#define QMW_LAYER_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include <qmla/status.h>

/**
 * Sets chosen[i] for the layers that @p text names, clears the others. @p chosen [count].
 * QMLA_ERR_INVALID_ARGUMENT: not such a list, or a layer outside 0 … count-1; @p chosen is
 * left undefined then.
 */
qmla_status_t qmw_layer_list_parse(const char *text, uint32_t count, bool *chosen);

#endif /* QMW_LAYER_LIST_H */
