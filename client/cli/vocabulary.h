/* SPDX-License-Identifier: Apache-2.0 */
/** @file Whether the bytes of a text are a model's tokens, as --text takes them to be. */
#ifndef QMW_VOCABULARY_H
#define QMW_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

/**
 * With 256 tokens they are. With another number a warning under the name of @p program says
 * what is done with the bytes. With a tokenizer's file in @p model as well they are not: where
 * @p tokens says that the command has --tokens, QMLA_ERR_UNSUPPORTED and the remedy in
 * @p problem, of @p size bytes.
 */
qmla_status_t qmw_vocabulary_check(const char *program, const char *model, uint32_t vocab,
				   bool tokens, char *problem, size_t size);

#endif /* QMW_VOCABULARY_H */
