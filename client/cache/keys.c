/* SPDX-License-Identifier: Apache-2.0 */
#include <qmla/cache.h>

#include <string.h>

#include "common/digest.h"

static const char key_domain[] = "qmla-key-v1"; /* the NUL is hashed too */

static void put_tokens(const uint32_t *tokens, uint8_t bytes[4 * QMLA_BLOCK_TOKENS])
{
	for (size_t i = 0; i < QMLA_BLOCK_TOKENS; i++) {
		bytes[4 * i] = (uint8_t)tokens[i];
		bytes[4 * i + 1] = (uint8_t)(tokens[i] >> 8);
		bytes[4 * i + 2] = (uint8_t)(tokens[i] >> 16);
		bytes[4 * i + 3] = (uint8_t)(tokens[i] >> 24);
	}
}

qmla_status_t qmla_key_chain_start(const qmla_identity_t *identity, const char *name_space,
				   qmla_key_chain_t *chain)
{
	const char *salt = name_space ? name_space : "";
	struct qmc_sha256 *hash;
	uint8_t digest[QMC_SHA256_BYTES];
	qmla_status_t status;

	if (!identity || !chain)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmc_sha256_create(&hash);
	if (status != QMLA_OK)
		return status;
	status = qmc_sha256_update(hash, key_domain, sizeof(key_domain));
	if (status == QMLA_OK)
		status = qmc_sha256_update(hash, identity->bytes, sizeof(identity->bytes));
	if (status == QMLA_OK)
		status = qmc_sha256_update(hash, salt, strlen(salt));
	if (status == QMLA_OK)
		status = qmc_sha256_finish(hash, digest);
	qmc_sha256_destroy(hash);
	if (status == QMLA_OK)
		memcpy(chain->state, digest, sizeof(chain->state));
	return status;
}

qmla_status_t qmla_key_chain_extend(qmla_key_chain_t *chain, const uint32_t *tokens, size_t blocks,
				    qmla_key_t *keys)
{
	uint8_t message[QMC_SHA256_BYTES + 4 * QMLA_BLOCK_TOKENS];
	struct qmc_sha256 *hash;
	qmla_status_t status;

	if (!chain || (blocks && (!tokens || !keys)))
		return QMLA_ERR_INVALID_ARGUMENT;
	status = qmc_sha256_create(&hash);
	if (status != QMLA_OK)
		return status;
	memcpy(message, chain->state, QMC_SHA256_BYTES);
	for (size_t i = 0; i < blocks && status == QMLA_OK; i++) {
		put_tokens(tokens + i * QMLA_BLOCK_TOKENS, message + QMC_SHA256_BYTES);
		status = qmc_sha256_update(hash, message, sizeof(message));
		if (status == QMLA_OK)
			status = qmc_sha256_finish(hash, message);
		if (status == QMLA_OK)
			memcpy(keys[i].bytes, message, sizeof(keys[i].bytes));
	}
	qmc_sha256_destroy(hash);
	if (status == QMLA_OK)
		memcpy(chain->state, message, QMC_SHA256_BYTES);
	return status;
}

qmla_status_t qmla_keys_compute(const qmla_identity_t *identity, const char *name_space,
				const uint32_t *tokens, size_t token_count, qmla_key_t *keys)
{
	qmla_key_chain_t chain;
	qmla_status_t status = qmla_key_chain_start(identity, name_space, &chain);

	if (status != QMLA_OK)
		return status;
	return qmla_key_chain_extend(&chain, tokens, token_count / QMLA_BLOCK_TOKENS, keys);
}
