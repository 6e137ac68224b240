/* SPDX-License-Identifier: Apache-2.0 */
/** @file Text of one flag to a value of its kind; internal to common/options.c. */
#ifndef QMC_OPTIONS_VALUE_H
#define QMC_OPTIONS_VALUE_H

#include "common/options.h"

/**
 * Parses @p text as @p option's kind, checks its range and stores it in the target.
 * With @p join a LIST or STRINGS is extended, else replaced. The target is untouched on an error.
 */
qmla_status_t qmc_option_assign(const struct qmc_option *option, const char *text, bool join);

/** True when the target is a char * to be freed. */
bool qmc_option_is_text(const struct qmc_option *option);

/** True when qmc_option_assign would succeed; stores nothing. */
bool qmc_option_acceptable(const struct qmc_option *option, const char *text);

#endif /* QMC_OPTIONS_VALUE_H */
