/* SPDX-License-Identifier: Apache-2.0 */
/** @file SHA-256 (OpenSSL), hexadecimal text and random bytes. */
#ifndef QMC_DIGEST_H
#define QMC_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

#define QMC_SHA256_BYTES 32

/** Incremental SHA-256. One thread at a time. */
struct qmc_sha256;

/** A hash of nothing so far. QMLA_ERR_NO_MEMORY. */
qmla_status_t qmc_sha256_create(struct qmc_sha256 **hash);
void qmc_sha256_destroy(struct qmc_sha256 *hash); /**< accepts NULL */

/** Takes in @p bytes bytes more. */
qmla_status_t qmc_sha256_update(struct qmc_sha256 *hash, const void *data, size_t bytes);
/** Writes the digest and resets @p hash for the next message. */
qmla_status_t qmc_sha256_finish(struct qmc_sha256 *hash, uint8_t digest[QMC_SHA256_BYTES]);

/** Digest of one buffer. Any thread. */
qmla_status_t qmc_sha256(const void *data, size_t bytes, uint8_t digest[QMC_SHA256_BYTES]);

/** Lower-case hex of @p bytes bytes; @p text holds 2·bytes + 1 characters. */
void qmc_hex_encode(const void *data, size_t bytes, char *text);

/** Reads exactly 2·@p bytes hex digits; QMLA_ERR_FORMAT on anything else. */
qmla_status_t qmc_hex_decode(const char *text, void *data, size_t bytes);

/** Fills @p data from the kernel's generator (getrandom). */
qmla_status_t qmc_random_bytes(void *data, size_t bytes);

/** True when both are equal; time does not depend on where they differ. */
int qmc_equal_constant_time(const void *a, const void *b, size_t bytes);

#endif /* QMC_DIGEST_H */
