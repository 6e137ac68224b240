/* SPDX-License-Identifier: Apache-2.0 */
/** @file cmocka.h with what it needs before it. */
#ifndef QMLA_TEST_CMOCKA_ALL_H
#define QMLA_TEST_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif /* QMLA_TEST_CMOCKA_ALL_H */
