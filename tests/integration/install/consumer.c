/* SPDX-License-Identifier: Apache-2.0 */
/* A program of someone else: sees only what is installed. */
#include <stdio.h>
#include <string.h>

#include <qmla/cache.h>

int main(void)
{
	qmla_client_config_t config = {
		.struct_size = sizeof(config),
		.nodes = "127.0.0.1:9",
		.layout = {QMLA_FORMAT_C4R4, 4, 512, 64},
		.connect_timeout_ms = 200,
	};
	uint32_t tokens[128];
	qmla_key_t keys[2];
	qmla_client_t *client;
	size_t prefix = 7;

	if (qmla_log_set_level("error") != QMLA_OK || qmla_log_set_level("loud") == QMLA_OK)
		return 5;
	for (uint32_t i = 0; i < 128; i++)
		tokens[i] = i;
	if (qmla_keys_compute(&config.identity, NULL, tokens, 128, keys) != QMLA_OK)
		return 1;
	if (qmla_layout_block_bytes(&config.layout) < 4 * 18688)
		return 2;
	if (qmla_client_create(&config, &client) != QMLA_OK)
		return 3;
	/* Nobody listens there: a miss, not an error. */
	if (qmla_client_lookup(client, keys, 2, 1000, &prefix) != QMLA_OK || prefix != 0)
		return 4;
	qmla_client_destroy(client);
	printf("qmla %s, %s\n", qmla_version(), qmla_status_name(QMLA_ERR_CORRUPT));
	return strcmp(qmla_status_name(QMLA_ERR_CORRUPT), "corrupt") != 0;
}
