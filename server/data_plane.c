/* SPDX-License-Identifier: Apache-2.0 */
#include "server/data_plane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/address.h"
#include "common/log.h"
#include "transport/blob.h"

#define HOST_ID_MAX 64
#define PATH_BYTES  256

struct lane {
	const struct qmt_transport_ops *ops;
	struct qmt_server *server;
	struct qmt_server_address address;
	struct qmt_handle handles[QMS_MAX_IDENTITIES];
};

struct qms_data_plane {
	struct qms_store *store;
	struct lane lanes[QMS_DATA_PLANE_MAX]; /* best first */
	size_t count;
	uint16_t port;
	char host_id[HOST_ID_MAX]; /* "": unknown, shm is then offered to nobody */
};

static qmla_status_t authorize(void *user, const struct qmt_access_request *request,
			       uint64_t *token)
{
	struct qms_data_plane *plane = user;
	struct qms_capability capability;

	memcpy(capability.bytes, request->capability, sizeof(capability.bytes));
	return qms_store_access_begin(plane->store, request->access == QMT_WRITE, request->region,
				      request->offset, request->length, &capability, token);
}

static void finished(void *user, const struct qmt_access_request *request, uint64_t token,
		     qmla_status_t status)
{
	struct qms_data_plane *plane = user;

	(void)request;
	(void)status;
	qms_store_access_end(plane->store, token);
}

static void read_host_id(char host_id[HOST_ID_MAX])
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

	host_id[0] = '\0';
	if (!file)
		return;
	if (!fgets(host_id, HOST_ID_MAX, file))
		host_id[0] = '\0';
	host_id[strcspn(host_id, "\n")] = '\0';
	fclose(file);
}

static qmla_status_t register_regions(struct qms_data_plane *plane, struct lane *lane)
{
	qmla_status_t status = QMLA_OK;

	for (uint32_t i = 0; i < qms_store_regions(plane->store) && status == QMLA_OK; i++) {
		struct qmt_memory memory;

		qms_store_region(plane->store, i, &memory.base, &memory.bytes, &memory.fd);
		status = lane->ops->server_register(lane->server, &memory, i, &lane->handles[i]);
	}
	return status;
}

static qmla_status_t open_lane(struct qms_data_plane *plane, const char *name,
			       struct qmt_server_config *config)
{
	struct lane *lane = &plane->lanes[plane->count];
	qmla_status_t status;

	config->callbacks = (struct qmt_server_callbacks){plane, authorize, finished};
	lane->ops = qmt_transport_find(name);
	if (!lane->ops)
		return QMLA_ERR_UNSUPPORTED;
	status = lane->ops->server_create(config, &lane->server);
	if (status != QMLA_OK)
		return status;
	status = register_regions(plane, lane);
	if (status == QMLA_OK)
		status = lane->ops->server_address(lane->server, &lane->address);
	if (status != QMLA_OK) {
		lane->ops->server_destroy(lane->server);
		return status;
	}
	plane->count++;
	return QMLA_OK;
}

static bool is_wildcard(const char *host)
{
	return host[0] == '\0' || strcmp(host, "::") == 0 || strcmp(host, "0.0.0.0") == 0;
}

/* What peers shall connect to when the socket listens on every address: this host's name. */
static const char *default_advertise(const char *listen, char host[QMC_HOST_MAX])
{
	struct qmc_address address;

	if (qmc_address_parse(listen, &address) != QMLA_OK || !is_wildcard(address.host))
		return NULL;
	if (gethostname(host, QMC_HOST_MAX - 1) != 0)
		return NULL;
	host[QMC_HOST_MAX - 1] = '\0';
	qmc_info("node",
		 "peers are told to reach the data port at host %s (--advertise changes it)", host);
	return host;
}

static qmla_status_t open_tcp(struct qms_data_plane *plane,
			      const struct qms_data_plane_config *config)
{
	char host[QMC_HOST_MAX] = "";
	struct qmt_server_config server = {
		.listen = config->listen,
		.advertise = config->advertise ? config->advertise
					       : default_advertise(config->listen, host),
		.threads = config->threads,
		.max_peers = config->max_peers,
		.idle_timeout_ns = config->idle_timeout_ns,
	};
	char text[QMT_ADDRESS_TEXT_MAX];
	struct qmt_identity identity;
	struct qmc_address address;
	qmla_status_t status = open_lane(plane, "tcp", &server);

	if (status != QMLA_OK)
		return status;
	status = qmt_address_decode(&plane->lanes[plane->count - 1].address, QMT_KIND_TCP,
				    &identity, text);
	if (status == QMLA_OK)
		status = qmc_address_parse(text, &address);
	if (status == QMLA_OK)
		plane->port = address.port;
	return status;
}

/* A directory of this user's own, made if need be: /tmp may hold somebody else's trap. */
static bool usable_directory(const char *path)
{
	struct stat st;

	if (mkdir(path, 0700) != 0 &&
	    (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()))
		return false;
	return access(path, W_OK | X_OK) == 0;
}

static bool default_directory(char path[PATH_BYTES])
{
	const char *places[] = {getenv("XDG_RUNTIME_DIR"), "/run", getenv("TMPDIR"), "/tmp"};

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		int n;

		if (!places[i] || places[i][0] != '/')
			continue;
		/* One a user, so that two users do not meet in /tmp. */
		n = snprintf(path, PATH_BYTES, "%s/qmla-node-%u", places[i], (unsigned)geteuid());
		if (n > 0 && n < PATH_BYTES && usable_directory(path))
			return true;
	}
	return false;
}

static qmla_status_t open_shm(struct qms_data_plane *plane,
			      const struct qms_data_plane_config *config)
{
	struct qmt_server_config server = {
		.listen = config->shm_dir,
		.threads = config->threads,
		.max_peers = config->max_peers,
		.idle_timeout_ns = config->idle_timeout_ns,
	};
	char path[PATH_BYTES];
	qmla_status_t status;

	if (config->shm_dir && strcmp(config->shm_dir, "none") == 0)
		return QMLA_OK;
	if (!config->shm_dir) {
		if (!default_directory(path)) {
			qmc_info("node", "no directory for the shm socket: no shm");
			return QMLA_OK;
		}
		server.listen = path;
	}
	status = open_lane(plane, "shm", &server);
	if (status != QMLA_OK && !config->shm_dir) {
		qmc_info("node", "shm is not to be had in %s (%s)", path, qmla_status_text(status));
		return QMLA_OK;
	}
	return status;
}

static qmla_status_t open_verbs(struct qms_data_plane *plane,
				const struct qms_data_plane_config *config)
{
	const struct qmt_transport_ops *ops = qmt_transport_find("verbs");
	/* Empty: as if it were not given. */
	const char *devices =
		config->rdma_devices && config->rdma_devices[0] ? config->rdma_devices : NULL;
	struct qmt_server_config server = {
		.devices = devices,
		.threads = config->threads,
		.max_peers = config->max_peers,
		.idle_timeout_ns = config->idle_timeout_ns,
	};
	qmla_status_t status;

	if (devices && strcmp(devices, "none") == 0)
		return QMLA_OK;
	if (!ops || !ops->usable()) {
		if (!devices)
			return QMLA_OK;
		qmc_error("node", "--rdma-devices %s: %s", devices,
			  ops ? "no usable RDMA device, or libibverbs.so.1 is not installed"
			      : "this build has no verbs transport");
		return QMLA_ERR_UNSUPPORTED;
	}
	status = open_lane(plane, "verbs", &server);
	if (status != QMLA_OK && !devices) {
		qmc_warn("node", "verbs is not to be had (%s): going without",
			 qmla_status_text(status));
		return QMLA_OK;
	}
	return status;
}

qmla_status_t qms_data_plane_create(const struct qms_data_plane_config *config,
				    struct qms_store *store, struct qms_data_plane **plane)
{
	struct qms_data_plane *made = calloc(1, sizeof(*made));
	qmla_status_t status;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	made->store = store;
	read_host_id(made->host_id);
	status = open_verbs(made, config);
	if (status == QMLA_OK)
		status = open_shm(made, config);
	if (status == QMLA_OK)
		status = open_tcp(made, config);
	if (status != QMLA_OK) {
		qms_data_plane_destroy(made);
		return status;
	}
	*plane = made;
	return QMLA_OK;
}

void qms_data_plane_destroy(struct qms_data_plane *plane)
{
	if (!plane)
		return;
	for (size_t i = 0; i < plane->count; i++)
		plane->lanes[i].ops->server_destroy(plane->lanes[i].server);
	free(plane);
}

uint16_t qms_data_plane_port(const struct qms_data_plane *plane)
{
	return plane->port;
}

const char *qms_data_plane_name(const struct qms_data_plane *plane, size_t index)
{
	return index < plane->count ? plane->lanes[index].ops->name : NULL;
}

void qms_data_plane_stats(const struct qms_data_plane *plane, size_t index,
			  struct qmt_server_stats *stats)
{
	plane->lanes[index].ops->server_stats(plane->lanes[index].server, stats);
}

/*
 * The boot id is equal in every container of one machine; whether the socket's
 * path is visible from the client's own is for the client to find out: it falls
 * back to tcp when it cannot connect.
 */
static bool reaches(const struct qms_data_plane *plane, const struct lane *lane,
		    const char *host_id)
{
	if (lane->ops != &qmt_shm_ops)
		return true;
	return plane->host_id[0] && host_id && strcmp(plane->host_id, host_id) == 0;
}

static const struct lane *find_lane(const struct qms_data_plane *plane, const char *name,
				    const char *host_id)
{
	for (size_t i = 0; i < plane->count; i++) {
		const struct lane *lane = &plane->lanes[i];

		if ((!name || strcmp(lane->ops->name, name) == 0) && reaches(plane, lane, host_id))
			return lane;
	}
	return NULL;
}

qmla_status_t qms_data_plane_choose(const struct qms_data_plane *plane, char *const *wishes,
				    size_t count, const char *host_id, uint32_t region,
				    struct qms_data_plane_path *path)
{
	const struct lane *lane = count == 0 ? find_lane(plane, NULL, host_id) : NULL;

	for (size_t i = 0; i < count && !lane; i++)
		lane = find_lane(plane, wishes[i], host_id);
	if (!lane)
		return QMLA_ERR_UNSUPPORTED;
	path->transport = lane->ops->name;
	path->address = lane->address;
	path->handle = lane->handles[region];
	return QMLA_OK;
}

qmla_status_t qms_data_plane_answer(const struct qms_data_plane *plane, const char *name,
				    uint32_t region, const struct qmt_offer *offer,
				    struct qmt_offer *answer)
{
	for (size_t i = 0; i < plane->count; i++) {
		const struct lane *lane = &plane->lanes[i];

		if (strcmp(lane->ops->name, name) == 0 && lane->ops->server_answer)
			return lane->ops->server_answer(lane->server, region, offer, answer);
	}
	return QMLA_ERR_UNSUPPORTED;
}

bool qms_data_plane_describe(const struct qms_data_plane *plane, size_t index,
			     char text[QMT_DESCRIPTION_MAX])
{
	const struct lane *lane = &plane->lanes[index];

	if (!lane->ops->server_describe)
		return false;
	lane->ops->server_describe(lane->server, text);
	return true;
}

void qms_data_plane_revoke(void *user, uint32_t region)
{
	struct qms_data_plane *plane = user;

	for (size_t i = 0; plane && i < plane->count; i++) {
		const struct lane *lane = &plane->lanes[i];

		if (lane->ops->server_revoke)
			lane->ops->server_revoke(lane->server, region);
	}
}

void qms_data_plane_fence(void *user, const struct qms_capability *capability)
{
	struct qms_data_plane *plane = user;

	for (size_t i = 0; i < plane->count; i++) {
		const struct lane *lane = &plane->lanes[i];
		qmla_status_t status = lane->ops->server_fence(lane->server, capability->bytes);

		/* In-flight counts still keep the slot from being used again too early. */
		if (status != QMLA_OK)
			qmc_error("node", "fencing %s failed: %s", lane->ops->name,
				  qmla_status_text(status));
	}
}
