/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc_tls.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/status.h"

#define PEM_BYTES_MAX (1 << 20)

struct pem_files {
	char *ca, *certificate, *key;
};

static qmla_status_t file_read(const char *path, const char *what, char **text)
{
	char *data = malloc(PEM_BYTES_MAX + 1);
	qmla_status_t status = QMLA_OK;
	size_t size;
	FILE *file;

	if (!data)
		return QMLA_ERR_NO_MEMORY;
	file = fopen(path, "re");
	if (!file) {
		status = qmc_status_from_errno(errno);
		qmc_error("tls", "cannot open the %s %s: %s", what, path, strerror(errno));
		free(data);
		return status;
	}
	size = fread(data, 1, PEM_BYTES_MAX + 1, file);
	if (ferror(file) || size > PEM_BYTES_MAX) {
		status = size > PEM_BYTES_MAX ? QMLA_ERR_TOO_LARGE : QMLA_ERR_IO;
		qmc_error("tls", "cannot use the %s %s: %s", what, path, qmla_status_text(status));
		free(data);
	} else {
		data[size] = '\0';
		*text = data;
	}
	fclose(file);
	return status;
}

static void pem_free(struct pem_files *pem)
{
	if (pem->key)
		OPENSSL_cleanse(pem->key, strlen(pem->key));
	free(pem->ca);
	free(pem->certificate);
	free(pem->key);
}

static X509 *parse_certificate(const char *text)
{
	BIO *bio = BIO_new_mem_buf(text, -1);
	X509 *certificate = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;

	BIO_free(bio);
	return certificate;
}

/* Never asks on a terminal: an encrypted key is refused. */
static int no_passphrase(char *buffer, int size, int writing, void *data)
{
	(void)buffer;
	(void)size;
	(void)writing;
	(void)data;
	return -1;
}

static EVP_PKEY *parse_key(const char *text)
{
	BIO *bio = BIO_new_mem_buf(text, -1);
	EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;

	BIO_free(bio);
	return key;
}

/* gRPC accepts any bytes here and fails every handshake later; say it now, by name. */
static qmla_status_t pem_check(const struct qmp_tls *tls, const struct pem_files *pem)
{
	X509 *ca = parse_certificate(pem->ca);
	X509 *certificate = parse_certificate(pem->certificate);
	EVP_PKEY *key = parse_key(pem->key);
	qmla_status_t status = QMLA_ERR_FORMAT;

	if (!ca)
		qmc_error("tls", "%s holds no PEM certificate", tls->ca_file);
	else if (!certificate)
		qmc_error("tls", "%s holds no PEM certificate", tls->certificate_file);
	else if (!key)
		qmc_error("tls", "%s holds no PEM private key without a passphrase", tls->key_file);
	else if (X509_check_private_key(certificate, key) != 1)
		qmc_error("tls", "the key %s does not belong to the certificate %s", tls->key_file,
			  tls->certificate_file);
	else
		status = QMLA_OK;
	ERR_clear_error();
	EVP_PKEY_free(key);
	X509_free(certificate);
	X509_free(ca);
	return status;
}

static qmla_status_t pem_load(const struct qmp_tls *tls, struct pem_files *pem)
{
	qmla_status_t status;

	*pem = (struct pem_files){0};
	if (!tls->ca_file || !tls->certificate_file || !tls->key_file) {
		qmc_error("tls", "mutual TLS needs three files: CA, certificate and key");
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = file_read(tls->ca_file, "CA file", &pem->ca);
	if (status == QMLA_OK)
		status = file_read(tls->certificate_file, "certificate", &pem->certificate);
	if (status == QMLA_OK)
		status = file_read(tls->key_file, "private key", &pem->key);
	if (status == QMLA_OK)
		status = pem_check(tls, pem);
	if (status != QMLA_OK)
		pem_free(pem);
	return status;
}

qmla_status_t qmp_server_credentials_create(const struct qmp_tls *tls,
					    grpc_server_credentials **credentials)
{
	grpc_ssl_pem_key_cert_pair pair;
	struct pem_files pem;
	qmla_status_t status;

	if (!tls) {
		*credentials = grpc_insecure_server_credentials_create();
		return QMLA_OK;
	}
	status = pem_load(tls, &pem);
	if (status != QMLA_OK)
		return status;
	pair = (grpc_ssl_pem_key_cert_pair){.private_key = pem.key, .cert_chain = pem.certificate};
	*credentials = grpc_ssl_server_credentials_create_ex(
		pem.ca, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
	pem_free(&pem);
	return *credentials ? QMLA_OK : QMLA_ERR_INTERNAL;
}

qmla_status_t qmp_channel_credentials_create(const struct qmp_tls *tls,
					     grpc_channel_credentials **credentials)
{
	grpc_ssl_pem_key_cert_pair pair;
	struct pem_files pem;
	qmla_status_t status;

	if (!tls) {
		*credentials = grpc_insecure_credentials_create();
		return QMLA_OK;
	}
	status = pem_load(tls, &pem);
	if (status != QMLA_OK)
		return status;
	pair = (grpc_ssl_pem_key_cert_pair){.private_key = pem.key, .cert_chain = pem.certificate};
	*credentials = grpc_ssl_credentials_create_ex(pem.ca, &pair, NULL, NULL);
	pem_free(&pem);
	return *credentials ? QMLA_OK : QMLA_ERR_INTERNAL;
}
