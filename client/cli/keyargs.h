/* SPDX-License-Identifier: Apache-2.0 */
/** @file Keys that a command is about: as hex operands, or worked out from tokens. */
#ifndef QMW_KEYARGS_H
#define QMW_KEYARGS_H

#include <qmla/cache.h>

#include "common/options.h"

struct qmw_keyargs {
	char *tokens; /**< file of token ids, decimal, separated by white space or commas */
	char *text;   /**< file whose bytes are the tokens */
	char *name_space;
	qmla_key_t *keys; /**< after qmw_keyargs_resolve */
	size_t count;
	bool chain; /**< the keys are one sequence's, in order */
};

/** Entries of a command's table; @p k is a struct qmw_keyargs. */
#define QMW_KEYARGS_OPTIONS(k)                                                                     \
	{"tokens",    0,      QMC_OPTION_STRING,                                                   \
	 &(k).tokens, "FILE", "keys of the full blocks of these token ids ('-': standard input)",  \
	 0,           0,      false},                                                              \
		{"text",    0,      QMC_OPTION_STRING,                                             \
		 &(k).text, "FILE", "likewise, each byte a token: models with a byte vocabulary",  \
		 0,         0,      false},                                                        \
	{                                                                                          \
		"namespace", 0, QMC_OPTION_STRING, &(k).name_space, "NAME",                        \
			"salt of the keys, default none", 0, 0, false                              \
	}

/**
 * Fills keys from @p operands (32 hex digits each) or from the file. Prints what
 * is wrong: QMLA_ERR_INVALID_ARGUMENT is wrong usage. A file shorter than a block
 * gives no keys, and says so.
 */
qmla_status_t qmw_keyargs_resolve(struct qmw_keyargs *args, const char *program,
				  const qmla_identity_t *identity, int count, char **operands);

/** True when a file of tokens was named. */
bool qmw_keyargs_from_file(const struct qmw_keyargs *args);

/** Frees the keys; the option targets are qmc_options_release's. */
void qmw_keyargs_release(struct qmw_keyargs *args);

#endif /* QMW_KEYARGS_H */
