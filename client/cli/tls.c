/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/tls.h"

#include <stdio.h>

bool qmw_tls_check(const struct qmw_tls *tls, const char *program)
{
	if (!tls->ca == !tls->certificate && !tls->ca == !tls->key)
		return true;
	fprintf(stderr, "%s: TLS needs all of --tls-ca, --tls-certificate and --tls-key\n",
		program);
	return false;
}

const struct qmp_tls *qmw_tls_files(struct qmw_tls *tls)
{
	if (!tls->ca)
		return NULL;
	tls->files = (struct qmp_tls){tls->ca, tls->certificate, tls->key};
	return &tls->files;
}
