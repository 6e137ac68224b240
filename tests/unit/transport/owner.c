/* SPDX-License-Identifier: Apache-2.0 */
#include "owner.h"

#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef QMT_HAVE_VERBS
#include "verbs/fake_verbs.h"
#endif

bool owner_keeps_verbs;

#define TOKENS 65536
#define REAL   "QMLA_TEST_RDMA_DEVICES" /* set: real verbs, through these */

static qmla_status_t authorize(void *user, const struct qmt_access_request *request,
			       uint64_t *token)
{
	struct owner *owner = user;
	qmla_status_t status;

	pthread_mutex_lock(&owner->lock);
	owner->asked++;
	status = owner->policy;
	if (owner->check_capability &&
	    memcmp(request->capability, owner->capability, QMT_CAPABILITY_BYTES) != 0)
		status = QMLA_ERR_PERMISSION;
	if (status == QMLA_OK) {
		*token = ++owner->next_token;
		owner->token_state[*token % TOKENS] = 1;
		owner->allowed++;
	}
	pthread_mutex_unlock(&owner->lock);
	return status;
}

static void finished(void *user, const struct qmt_access_request *request, uint64_t token,
		     qmla_status_t status)
{
	struct owner *owner = user;

	(void)request;
	pthread_mutex_lock(&owner->lock);
	if (owner->token_state[token % TOKENS] != 1)
		owner->doubly_finished++;
	owner->token_state[token % TOKENS] = 2;
	if (status == QMLA_OK)
		owner->finished_ok++;
	else
		owner->finished_failed++;
	owner->last_finished = status;
	pthread_mutex_unlock(&owner->lock);
}

static bool memory_create(struct qmt_memory *memory, uint64_t bytes)
{
	memory->bytes = bytes;
	memory->fd = memfd_create("owner", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (memory->fd < 0 || ftruncate(memory->fd, (off_t)bytes) < 0)
		return false;
	memory->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
	return memory->base != MAP_FAILED;
}

/* Verbs of this process with one device, unless a test has made its own or wants real ones. */
static void start_verbs(struct owner *owner)
{
#ifdef QMT_HAVE_VERBS
	if (strcmp(owner->ops->name, "verbs") != 0 || getenv(REAL) || owner_keeps_verbs)
		return;
	qmt_verbs_api_use(fake_start());
	(void)fake_add_roce("fake0", 1);
	owner->fake = true;
#else
	(void)owner;
#endif
}

static void stop_verbs(const struct owner *owner)
{
#ifdef QMT_HAVE_VERBS
	if (owner->fake)
		assert_true(fake_stop());
#else
	(void)owner;
#endif
}

bool owner_create(struct owner *owner, const char *transport, uint64_t bytes, uint32_t max_peers,
		  int64_t idle_timeout_ns)
{
	struct qmt_server_config config = {
		.listen = "[::1]:0",
		.devices = getenv(REAL),
		.max_peers = max_peers,
		.idle_timeout_ns = idle_timeout_ns,
		.callbacks = {.user = owner, .authorize = authorize, .finished = finished},
	};

	memset(owner, 0, sizeof(*owner));
	owner->ops = qmt_transport_find(transport);
	pthread_mutex_init(&owner->lock, NULL);
	owner->token_state = calloc(TOKENS, 1);
	if (owner->ops)
		start_verbs(owner);
	if (!owner->ops || !owner->token_state || !memory_create(&owner->memory, bytes))
		return false;
	if (strcmp(transport, "shm") == 0) {
		strcpy(owner->directory, "/tmp/qmt-test-XXXXXX");
		if (!mkdtemp(owner->directory))
			return false;
		config.listen = owner->directory;
	}
	return owner->ops->server_create(&config, &owner->server) == QMLA_OK &&
	       owner->ops->server_address(owner->server, &owner->address) == QMLA_OK &&
	       owner->ops->server_register(owner->server, &owner->memory, OWNER_REGION,
					   &owner->handle) == QMLA_OK;
}

void owner_start_with(struct owner *owner, const char *transport, uint64_t bytes,
		      uint32_t max_peers, int64_t idle_timeout_ns)
{
	assert_true(owner_create(owner, transport, bytes, max_peers, idle_timeout_ns));
}

void owner_start(struct owner *owner, const char *transport, uint64_t bytes)
{
	owner_start_with(owner, transport, bytes, 0, 0);
}

void owner_stop_server(struct owner *owner)
{
	owner->ops->server_destroy(owner->server);
	owner->server = NULL;
}

void owner_stop(struct owner *owner)
{
	owner_stop_server(owner);
	assert_int_equal(owner_in_flight(owner), 0);
	assert_int_equal(owner->doubly_finished, 0);
	munmap(owner->memory.base, owner->memory.bytes);
	close(owner->memory.fd);
	/* The server took its socket away: the directory is empty. */
	if (owner->directory[0])
		assert_int_equal(rmdir(owner->directory), 0);
	stop_verbs(owner);
	free(owner->token_state);
	pthread_mutex_destroy(&owner->lock);
}

/* What the control plane does for transports that connect over it. */
static qmla_status_t negotiate(struct owner *owner, const struct qmt_server_address *address,
			       qmc_time_t deadline, struct qmt_endpoint **endpoint)
{
	struct qmt_offer offer, answer;
	struct qmt_endpoint *made = NULL;
	qmla_status_t status = owner->ops->endpoint_offer(address, &made, &offer);

	if (status != QMLA_OK)
		return status;
	status = owner->server
			 ? owner->ops->server_answer(owner->server, OWNER_REGION, &offer, &answer)
			 : QMLA_ERR_UNAVAILABLE;
	if (status == QMLA_OK)
		status = owner->ops->endpoint_complete(made, &answer, deadline);
	if (status == QMLA_OK)
		*endpoint = made;
	else
		owner->ops->endpoint_destroy(made);
	return status;
}

qmla_status_t owner_try(struct owner *owner, const struct qmt_server_address *address,
			qmc_time_t deadline, struct qmt_endpoint **endpoint)
{
	if (owner->ops->endpoint_offer)
		return negotiate(owner, address, deadline, endpoint);
	return owner->ops->endpoint_create(address, deadline, endpoint);
}

struct qmt_endpoint *owner_connect(struct owner *owner)
{
	struct qmt_endpoint *endpoint = NULL;

	assert_int_equal(
		owner_try(owner, &owner->address, qmc_clock_after(5 * QMC_NS_PER_S), &endpoint),
		QMLA_OK);
	return endpoint;
}

struct qmt_op owner_op(struct owner *owner, enum qmt_access access, uint64_t offset, void *local,
		       uint64_t length)
{
	struct qmt_op op = {
		.access = access,
		.remote = &owner->handle,
		.remote_offset = offset,
		.local = local,
		.length = length,
		/* Long: an emulated device on a busy machine moves 10 MB/s. */
		.deadline = qmc_clock_after(60 * QMC_NS_PER_S),
		.status = QMLA_ERR_INTERNAL,
	};

	memset(op.capability, 1, sizeof(op.capability));
	return op;
}

struct owner owner_snapshot(struct owner *owner)
{
	struct owner copy;

	pthread_mutex_lock(&owner->lock);
	copy = *owner;
	pthread_mutex_unlock(&owner->lock);
	return copy;
}

unsigned owner_in_flight(struct owner *owner)
{
	struct owner now = owner_snapshot(owner);

	return now.allowed - now.finished_ok - now.finished_failed;
}

bool owner_settles(struct owner *owner, int ms)
{
	for (int i = 0; i < ms && owner_in_flight(owner) > 0; i++)
		sleep_ms(1);
	return owner_in_flight(owner) == 0;
}

void fill_pattern(void *memory, size_t bytes, uint64_t seed)
{
	uint8_t *p = memory;
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (size_t i = 0; i < bytes; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		p[i] = (uint8_t)(x >> 56);
	}
}

unsigned open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	unsigned count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

void sleep_ms(int ms)
{
	qmc_clock_sleep_until(qmc_clock_after(ms * QMC_NS_PER_MS));
}

pid_t child_start(int (*run)(int to_parent, const char *transport), const char *transport,
		  int *to_child)
{
	int pair[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(pair[0]);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(run(pair[1], transport));
	}
	close(pair[1]);
	*to_child = pair[0];
	return child;
}

int child_join(pid_t child, int to_child)
{
	int status = 0;

	close(to_child);
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void child_stop(pid_t child)
{
	int status = 0;

	assert_int_equal(kill(child, SIGSTOP), 0);
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	assert_true(WIFSTOPPED(status));
}

void child_kill(pid_t child, int to_child)
{
	kill(child, SIGKILL);
	assert_int_equal(child_join(child, to_child), -1);
}

static bool ready(int fd, short events)
{
	struct pollfd pfd = {.fd = fd, .events = events};

	return poll(&pfd, 1, 5000) == 1;
}

bool tell(int fd, const void *data, size_t bytes)
{
	const uint8_t *p = data;

	while (bytes > 0) {
		ssize_t n = ready(fd, POLLOUT) ? send(fd, p, bytes, MSG_NOSIGNAL) : -1;

		if (n <= 0)
			return false;
		p += n;
		bytes -= (size_t)n;
	}
	return true;
}

bool hear(int fd, void *data, size_t bytes)
{
	uint8_t *p = data;

	while (bytes > 0) {
		ssize_t n = ready(fd, POLLIN) ? recv(fd, p, bytes, 0) : -1;

		if (n <= 0)
			return false;
		p += n;
		bytes -= (size_t)n;
	}
	return true;
}

static unsigned descriptors_before;

int remember_descriptors(void **state)
{
	(void)state;
	descriptors_before = open_descriptors();
	return 0;
}

int check_descriptors(void **state)
{
	unsigned now = open_descriptors();

	(void)state;
	if (now == descriptors_before)
		return 0;
	fprintf(stderr, "%u descriptors are open, %u were\n", now, descriptors_before);
	return -1;
}
