/* SPDX-License-Identifier: Apache-2.0 */
#include "transport_server.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

#define GUARD 4096

static atomic_long in_flight;
static uint8_t *guarded; /* GUARD bytes, the region, GUARD bytes */
static struct qmt_identity identity;
static char address_text[QMT_ADDRESS_TEXT_MAX];
static char directory[] = "/tmp/qmt-fuzz-XXXXXX";

/* Capability byte 0 decides, so that a fuzzer finds both answers. */
static qmla_status_t authorize(void *user, const struct qmt_access_request *request,
			       uint64_t *token)
{
	(void)user;
	if (request->offset + request->length > VICTIM_BYTES || request->length > VICTIM_BYTES)
		abort();
	if (request->capability[0] & 1)
		return QMLA_ERR_PERMISSION;
	*token = 1;
	atomic_fetch_add(&in_flight, 1);
	return QMLA_OK;
}

static void finished(void *user, const struct qmt_access_request *request, uint64_t token,
		     qmla_status_t status)
{
	(void)user;
	(void)request;
	(void)status;
	if (token != 1 || atomic_fetch_sub(&in_flight, 1) < 1)
		abort();
}

static struct qmt_server *server;

static void leave(void)
{
	qmt_shm_ops.server_destroy(server);
	rmdir(directory);
}

static void victim_create(const char *name)
{
	struct qmt_server_config config = {
		.listen = "[::1]:0",
		.threads = 1,
		.idle_timeout_ns = QMC_NS_PER_S,
		.callbacks = {.authorize = authorize, .finished = finished}};
	const struct qmt_transport_ops *ops = qmt_transport_find(name);
	bool shm = ops == &qmt_shm_ops;
	int fd = memfd_create("victim", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct qmt_memory memory = {.bytes = VICTIM_BYTES, .fd = fd};
	struct qmt_server_address address;
	struct qmt_handle handle;

	qmc_log_configure(QMC_LOG_ERROR, QMC_LOG_TEXT);
	guarded = mmap(NULL, 2 * GUARD + VICTIM_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || ftruncate(fd, VICTIM_BYTES) || guarded == MAP_FAILED ||
	    mmap(guarded + GUARD, VICTIM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		 0) == MAP_FAILED)
		abort();
	memset(guarded, 0xc3, GUARD);
	memset(guarded + GUARD + VICTIM_BYTES, 0xc3, GUARD);
	memory.base = guarded + GUARD;
	if (shm) {
		if (!mkdtemp(directory))
			abort();
		config.listen = directory;
		atexit(leave);
	}
	if (ops->server_create(&config, &server) != QMLA_OK ||
	    ops->server_register(server, &memory, VICTIM_REGION, &handle) != QMLA_OK ||
	    ops->server_address(server, &address) != QMLA_OK ||
	    qmt_address_decode(&address, shm ? QMT_KIND_SHM : QMT_KIND_TCP, &identity,
			       address_text) != QMLA_OK)
		abort();
}

const struct qmt_identity *victim_start(const char *name, char text[QMT_ADDRESS_TEXT_MAX])
{
	if (!guarded)
		victim_create(name);
	memcpy(text, address_text, sizeof(address_text));
	return &identity;
}

void victim_check(void)
{
	qmc_time_t deadline = qmc_clock_after(2 * QMC_NS_PER_S);

	while (atomic_load(&in_flight) > 0) {
		if (qmc_clock_left(deadline) == 0)
			abort();
		qmc_clock_sleep_until(qmc_clock_after(50 * QMC_NS_PER_US));
	}
	for (size_t i = 0; i < GUARD; i++) {
		if (guarded[i] != 0xc3 || guarded[GUARD + VICTIM_BYTES + i] != 0xc3)
			abort();
	}
}
