/* SPDX-License-Identifier: Apache-2.0 */
/** @file What cmocka.h wants before it. */
#ifndef TEST_CMOCKA_FIRST_H
#define TEST_CMOCKA_FIRST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif /* TEST_CMOCKA_FIRST_H */
