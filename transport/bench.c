/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "common/status.h"

#define POOL_BYTES     (UINT64_C(128) << 20)
#define DEPTH          64
#define DEPTH_MAX      256
#define ROUNDS_MAX     15
#define OP_DEADLINE_NS (30 * QMC_NS_PER_S)
#define LISTEN         "[::1]:0"

/* What is measured: a source in a memfd and a destination of the same size. */
struct pools {
	struct qmt_memory source;
	uint8_t *destination;
	uint64_t block_bytes, blocks; /* that fit into a pool */
	uint32_t depth;
};

static qmla_status_t authorize(void *user, const struct qmt_access_request *request,
			       uint64_t *token)
{
	(void)user;
	(void)request;
	*token = 0;
	return QMLA_OK;
}

static void finished(void *user, const struct qmt_access_request *request, uint64_t token,
		     qmla_status_t status)
{
	(void)user;
	(void)request;
	(void)token;
	(void)status;
}

static void *map(int fd)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);

	return base == MAP_FAILED ? NULL : base;
}

static void pools_fini(struct pools *pools)
{
	if (pools->source.base)
		munmap(pools->source.base, POOL_BYTES);
	if (pools->destination)
		munmap(pools->destination, POOL_BYTES);
	if (pools->source.fd >= 0)
		close(pools->source.fd);
}

static qmla_status_t pools_init(struct pools *pools, uint64_t block_bytes, uint32_t depth)
{
	int fd = memfd_create("qmt-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint64_t *words;

	*pools = (struct pools){.source = {.fd = fd, .bytes = POOL_BYTES},
				.block_bytes = block_bytes,
				.blocks = POOL_BYTES / block_bytes,
				.depth = depth};
	if (fd >= 0 && ftruncate(fd, (off_t)POOL_BYTES) == 0) {
		pools->source.base = map(fd);
		pools->destination = map(-1);
	}
	if (!pools->source.base || !pools->destination) {
		qmc_error("bench", "no memory for two pools of %llu MiB",
			  (unsigned long long)(POOL_BYTES >> 20));
		pools_fini(pools);
		return QMLA_ERR_NO_MEMORY;
	}
	words = pools->source.base;
	for (uint64_t i = 0; i < POOL_BYTES / sizeof(*words); i++)
		words[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
	return QMLA_OK;
}

static double rate(uint64_t bytes, qmc_time_t begin)
{
	return (double)bytes / (double)(qmc_clock_now() - begin);
}

/* ---- what we measure ---- */

struct fetcher {
	const struct qmt_transport_ops *ops;
	struct qmt_server *server;
	struct qmt_endpoint *endpoint;
	struct qmt_handle handle;
};

static void fetcher_fini(struct fetcher *fetcher)
{
	if (fetcher->endpoint)
		fetcher->ops->endpoint_destroy(fetcher->endpoint);
	if (fetcher->server)
		fetcher->ops->server_destroy(fetcher->server);
}

static qmla_status_t fetcher_init(struct fetcher *fetcher, const char *name, const char *directory,
				  const struct pools *pools)
{
	struct qmt_server_config config = {
		.listen = strcmp(name, "shm") == 0 ? directory : LISTEN,
		.callbacks = {.authorize = authorize, .finished = finished}};
	struct qmt_server_address address;
	qmla_status_t status;

	*fetcher = (struct fetcher){.ops = qmt_transport_find(name)};
	if (!fetcher->ops) {
		qmc_error("bench", "there is no transport \"%s\"", name);
		return QMLA_ERR_NOT_FOUND;
	}
	if (!fetcher->ops->endpoint_create) {
		qmc_error("bench", "transport \"%s\" connects over the control plane: use a node",
			  name);
		return QMLA_ERR_UNSUPPORTED;
	}
	status = fetcher->ops->server_create(&config, &fetcher->server);
	if (status == QMLA_OK)
		status = fetcher->ops->server_register(fetcher->server, &pools->source, 1,
						       &fetcher->handle);
	if (status == QMLA_OK)
		status = fetcher->ops->server_address(fetcher->server, &address);
	if (status == QMLA_OK)
		status = fetcher->ops->endpoint_create(&address, qmc_clock_after(OP_DEADLINE_NS),
						       &fetcher->endpoint);
	if (status != QMLA_OK)
		fetcher_fini(fetcher);
	return status;
}

static qmla_status_t post_block(struct fetcher *fetcher, const struct pools *pools, uint64_t index,
				struct qmt_op *op)
{
	uint64_t offset = index % pools->blocks * pools->block_bytes;

	*op = (struct qmt_op){.access = QMT_READ,
			      .remote = &fetcher->handle,
			      .remote_offset = offset,
			      .local = pools->destination + offset,
			      .length = pools->block_bytes,
			      .deadline = qmc_clock_after(OP_DEADLINE_NS)};
	return fetcher->ops->endpoint_post(fetcher->endpoint, op);
}

/* Fetches @count blocks, `depth` of them posted at any time. */
static qmla_status_t fetch(struct fetcher *fetcher, const struct pools *pools, uint64_t count)
{
	struct qmt_op list[DEPTH_MAX];
	uint64_t posted = 0, done = 0;
	qmla_status_t status = QMLA_OK;

	while (status == QMLA_OK && posted < count && posted < pools->depth) {
		status = post_block(fetcher, pools, posted, &list[posted]);
		posted++;
	}
	while (status == QMLA_OK && done < count) {
		struct qmt_op *op = NULL;

		status = fetcher->ops->endpoint_wait(fetcher->endpoint, QMC_TIME_NEVER, &op);
		if (status == QMLA_OK)
			status = op ? op->status : QMLA_ERR_INTERNAL;
		done++;
		if (status == QMLA_OK && posted < count)
			status = post_block(fetcher, pools, posted++, op);
	}
	return status;
}

static qmla_status_t warm_up(struct fetcher *fetcher, const struct pools *pools)
{
	qmla_status_t status;

	memset(pools->destination, 0, POOL_BYTES);
	status = fetch(fetcher, pools, pools->blocks);
	if (status == QMLA_OK && memcmp(pools->destination, pools->source.base,
					pools->blocks * pools->block_bytes) != 0) {
		qmc_error("bench", "what was fetched differs from its source");
		status = QMLA_ERR_CORRUPT;
	}
	return status;
}

/* ---- the limits ---- */

static qmla_status_t copy_memory(const struct pools *pools, uint64_t count, double *gbytes)
{
	qmc_time_t begin = qmc_clock_now();

	for (uint64_t i = 0; i < count; i++) {
		uint64_t offset = i % pools->blocks * pools->block_bytes;

		memcpy(pools->destination + offset, (const uint8_t *)pools->source.base + offset,
		       pools->block_bytes);
		/* The compiler must not see through repeated copies. */
		__asm__ volatile("" ::: "memory");
	}
	*gbytes = rate(count * pools->block_bytes, begin);
	return QMLA_OK;
}

struct sender {
	const struct pools *pools;
	uint64_t count;
	int fd;
};

static void *send_blocks(void *argument)
{
	const struct sender *sender = argument;
	const struct pools *pools = sender->pools;

	for (uint64_t i = 0; i < sender->count; i++) {
		const uint8_t *from = (const uint8_t *)pools->source.base +
				      i % pools->blocks * pools->block_bytes;
		uint64_t sent = 0;

		while (sent < pools->block_bytes) {
			ssize_t n = send(sender->fd, from + sent, pools->block_bytes - sent,
					 MSG_NOSIGNAL);

			if (n < 0)
				return NULL;
			sent += (uint64_t)n;
		}
	}
	return NULL;
}

static qmla_status_t receive_blocks(int fd, const struct pools *pools, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint8_t *to = pools->destination + i % pools->blocks * pools->block_bytes;

		/* Blocking, so this gives a block or an error. */
		if (recv(fd, to, pools->block_bytes, MSG_WAITALL) != (ssize_t)pools->block_bytes)
			return QMLA_ERR_UNAVAILABLE;
	}
	return QMLA_OK;
}

/* A connected pair of blocking sockets over loopback. */
static qmla_status_t connect_pair(int *sending, int *receiving)
{
	struct qmc_address address;
	struct pollfd pfd = {.events = POLLIN};
	uint16_t port;
	qmla_status_t status = qmc_address_parse(LISTEN, &address);

	if (status == QMLA_OK)
		status = qmc_tcp_listen(&address, &pfd.fd, &port);
	if (status != QMLA_OK)
		return status;
	address.port = port;
	status = qmc_tcp_connect(&address, qmc_clock_after(OP_DEADLINE_NS), receiving);
	if (status == QMLA_OK) {
		(void)poll(&pfd, 1, qmc_clock_left_ms(qmc_clock_after(OP_DEADLINE_NS)));
		*sending = accept4(pfd.fd, NULL, NULL, SOCK_CLOEXEC);
		if (*sending < 0 || fcntl(*receiving, F_SETFL, 0) < 0) {
			status = qmc_status_from_errno(errno);
			close(*receiving);
			if (*sending >= 0)
				close(*sending);
		}
	}
	close(pfd.fd);
	return status;
}

static qmla_status_t copy_socket(const struct pools *pools, uint64_t count, double *gbytes)
{
	struct sender sender = {.pools = pools, .count = count};
	pthread_t thread;
	qmc_time_t begin;
	int fd;
	qmla_status_t status = connect_pair(&sender.fd, &fd);

	if (status != QMLA_OK)
		return status;
	begin = qmc_clock_now();
	if (pthread_create(&thread, NULL, send_blocks, &sender)) {
		status = QMLA_ERR_RESOURCE_EXHAUSTED;
	} else {
		status = receive_blocks(fd, pools, count);
		*gbytes = rate(count * pools->block_bytes, begin);
		shutdown(fd, SHUT_RDWR);
		pthread_join(thread, NULL);
	}
	close(fd);
	close(sender.fd);
	return status;
}

/* ---- medians ---- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
	qsort(values, count, sizeof(values[0]), compare);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static qmla_status_t measure(struct fetcher *fetcher, const struct pools *pools, uint64_t count,
			     uint32_t rounds, struct qmt_bench_result *result)
{
	bool shm = fetcher->ops == &qmt_shm_ops;
	double ours[ROUNDS_MAX], limit[ROUNDS_MAX], ratio[ROUNDS_MAX];
	qmla_status_t status = warm_up(fetcher, pools);

	for (uint32_t i = 0; i < rounds && status == QMLA_OK; i++) {
		qmc_time_t begin;

		status = shm ? copy_memory(pools, count, &limit[i])
			     : copy_socket(pools, count, &limit[i]);
		if (status != QMLA_OK)
			return status;
		begin = qmc_clock_now();
		status = fetch(fetcher, pools, count);
		ours[i] = rate(count * pools->block_bytes, begin);
		ratio[i] = ours[i] / limit[i];
	}
	if (status != QMLA_OK)
		return status;
	*result = (struct qmt_bench_result){
		.transport = fetcher->ops->name,
		.limit = shm ? "memcpy" : "plain socket",
		.block_bytes = pools->block_bytes,
		.gbytes_per_s = median(ours, rounds),
		.limit_gbytes_per_s = median(limit, rounds),
		.ratio = median(ratio, rounds),
		.required = 0.70,
	};
	return QMLA_OK;
}

qmla_status_t qmt_bench_fetch(const char *name, const struct qmt_bench_config *config,
			      struct qmt_bench_result *result)
{
	uint64_t total = config->total_bytes ? config->total_bytes : UINT64_C(1) << 30;
	uint64_t block = config->block_bytes ? config->block_bytes : UINT64_C(1258291);
	uint32_t rounds = config->rounds ? config->rounds : 3;
	uint32_t depth = config->depth ? config->depth : DEPTH;
	char directory[] = "/tmp/qmt-bench-XXXXXX";
	struct fetcher fetcher;
	struct pools pools;
	qmla_status_t status;

	if (block > POOL_BYTES || rounds > ROUNDS_MAX || depth > DEPTH_MAX) {
		qmc_error("bench", "at most %llu bytes a block, %d rounds and %d reads at a time",
			  (unsigned long long)POOL_BYTES, ROUNDS_MAX, DEPTH_MAX);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (!mkdtemp(directory)) {
		qmc_error("bench", "cannot make a directory in /tmp: %s", strerror(errno));
		return qmc_status_from_errno(errno);
	}
	status = pools_init(&pools, block, depth);
	if (status != QMLA_OK)
		goto err_directory;
	status = fetcher_init(&fetcher, name, directory, &pools);
	if (status != QMLA_OK)
		goto err_pools;
	status = measure(&fetcher, &pools, (total + block - 1) / block, rounds, result);
	fetcher_fini(&fetcher);
err_pools:
	pools_fini(&pools);
err_directory:
	rmdir(directory);
	return status;
}
