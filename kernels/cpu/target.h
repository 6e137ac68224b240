/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * QMK_CLONES before a function compiles it for the baseline, AVX2 and AVX-512
 * and picks one when the program is loaded. Results of the clones may differ in
 * the last bits (fused multiply-add); on one machine they are always the same.
 */
#ifndef QMK_CPU_TARGET_H
#define QMK_CPU_TARGET_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
	__has_feature(memory_sanitizer)
#define QMK_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QMK_SANITIZED 1
#endif

/*
 * A sanitizer's run time is not ready when the loader calls the resolvers. clang
 * gives its resolvers a name that other files do not know (seen with 14): there,
 * build with QMLA_NATIVE for speed.
 */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) &&       \
	defined(__OPTIMIZE__) && !defined(QMK_SANITIZED)
#define QMK_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define QMK_CLONES
#endif

#endif /* QMK_CPU_TARGET_H */
