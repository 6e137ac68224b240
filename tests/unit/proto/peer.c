/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixture server in a process of its own, to be stopped and killed by the tests:
 *   peer PORT [CA CERTIFICATE KEY]
 * prints the port it serves on and ends when standard input does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fixture.h"

int main(int argc, char **argv)
{
	struct qmp_server_config config = {0};
	struct fixture fixture;
	struct qmp_tls tls;
	char listen[64];
	char byte;

	if (argc != 2 && argc != 5)
		return 2;
	snprintf(listen, sizeof(listen), "127.0.0.1:%s", argv[1]);
	config.listen = listen;
	if (argc == 5) {
		tls = (struct qmp_tls){argv[2], argv[3], argv[4]};
		config.tls = &tls;
	}
	fixture_serve(&fixture, &config);
	printf("%u\n", qmp_server_port(fixture.server));
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	qmp_server_destroy(fixture.server, MS(1000));
	return 0;
}
