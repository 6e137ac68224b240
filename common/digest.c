/* SPDX-License-Identifier: Apache-2.0 */
#include "common/digest.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/status.h"

struct qmc_sha256 {
	EVP_MD_CTX *context;
};

qmla_status_t qmc_sha256_create(struct qmc_sha256 **hash)
{
	struct qmc_sha256 *self = malloc(sizeof(*self));

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->context = EVP_MD_CTX_new();
	if (!self->context || EVP_DigestInit_ex(self->context, EVP_sha256(), NULL) != 1) {
		qmc_sha256_destroy(self);
		return QMLA_ERR_NO_MEMORY;
	}
	*hash = self;
	return QMLA_OK;
}

void qmc_sha256_destroy(struct qmc_sha256 *hash)
{
	if (!hash)
		return;
	EVP_MD_CTX_free(hash->context);
	free(hash);
}

qmla_status_t qmc_sha256_update(struct qmc_sha256 *hash, const void *data, size_t bytes)
{
	return EVP_DigestUpdate(hash->context, data, bytes) == 1 ? QMLA_OK : QMLA_ERR_INTERNAL;
}

qmla_status_t qmc_sha256_finish(struct qmc_sha256 *hash, uint8_t digest[QMC_SHA256_BYTES])
{
	unsigned length = 0;

	if (EVP_DigestFinal_ex(hash->context, digest, &length) != 1 || length != QMC_SHA256_BYTES ||
	    EVP_DigestInit_ex(hash->context, NULL, NULL) != 1)
		return QMLA_ERR_INTERNAL;
	return QMLA_OK;
}

qmla_status_t qmc_sha256(const void *data, size_t bytes, uint8_t digest[QMC_SHA256_BYTES])
{
	size_t length = 0;

	if (EVP_Q_digest(NULL, "SHA256", NULL, data, bytes, digest, &length) != 1 ||
	    length != QMC_SHA256_BYTES)
		return QMLA_ERR_INTERNAL;
	return QMLA_OK;
}

void qmc_hex_encode(const void *data, size_t bytes, char *text)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *p = data;

	for (size_t i = 0; i < bytes; i++) {
		text[2 * i] = digits[p[i] >> 4];
		text[2 * i + 1] = digits[p[i] & 15];
	}
	text[2 * bytes] = '\0';
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

qmla_status_t qmc_hex_decode(const char *text, void *data, size_t bytes)
{
	uint8_t *p = data;

	if (strlen(text) != 2 * bytes)
		return QMLA_ERR_FORMAT;
	for (size_t i = 0; i < 2 * bytes; i++) {
		if (hex_value(text[i]) < 0)
			return QMLA_ERR_FORMAT;
	}
	for (size_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(hex_value(text[2 * i]) * 16 + hex_value(text[2 * i + 1]));
	return QMLA_OK;
}

qmla_status_t qmc_random_bytes(void *data, size_t bytes)
{
	uint8_t *p = data;

	while (bytes > 0) {
		ssize_t n = getrandom(p, bytes, 0);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return qmc_status_from_errno(errno);
		}
		p += n;
		bytes -= (size_t)n;
	}
	return QMLA_OK;
}

int qmc_equal_constant_time(const void *a, const void *b, size_t bytes)
{
	return CRYPTO_memcmp(a, b, bytes) == 0;
}
