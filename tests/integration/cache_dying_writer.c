/* SPDX-License-Identifier: Apache-2.0 */
/* Reserves blocks on a node, says so, and waits to be killed: argv is address, keys in hex. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cache_raw.h"
#include "common/digest.h"

int main(int argc, char **argv)
{
	const qmla_layout_t layout = {QMLA_FORMAT_C4R4, 2, 512, 64};
	struct qmp_channel_config config = {.target = argc > 1 ? argv[1] : ""};
	struct qmp_channel *channel;
	qmla_identity_t identity;
	qmla_key_t keys[16];
	size_t count = 0, granted = 0;

	memset(identity.bytes, 0x71, sizeof(identity.bytes));
	for (int i = 2; i < argc && count < 16; i++) {
		if (qmc_hex_decode(argv[i], keys[count].bytes, sizeof(keys[count].bytes)) !=
		    QMLA_OK)
			return 2;
		count++;
	}
	if (qmp_channel_create(&config, &channel) != QMLA_OK ||
	    raw_connect(channel, &identity, &layout) != QMLA_OK ||
	    raw_reserve(channel, &identity, keys, count, 700, &granted) != QMLA_OK)
		return 1;
	printf("%zu\n", granted);
	fflush(stdout);
	sleep(60);
	return 1;
}
