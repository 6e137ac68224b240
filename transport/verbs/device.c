/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "transport/verbs/device_internal.h"

#define CANDIDATES_MAX 32
#define PICKS_MAX      16

#define SOFT_ROCE_VENDOR UINT32_C(0xffffff)

/* One entry of a specification. */
struct pick {
	char name[QMT_DEVICE_NAME_MAX];
	int port, gid; /* -1: any */
};

/* ---- the specification ---- */

static bool parse_number(const char *text, int most, int *number)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end || errno != 0 || value < 0 || value > most)
		return false;
	*number = (int)value;
	return true;
}

static bool parse_pick(char *text, struct pick *pick)
{
	char *port = strchr(text, ':'), *gid = NULL;

	pick->port = pick->gid = -1;
	if (port) {
		*port++ = '\0';
		gid = strchr(port, ':');
		if (gid)
			*gid++ = '\0';
		if (!parse_number(port, 255, &pick->port) || pick->port == 0)
			return false;
	}
	if (gid && !parse_number(gid, 255, &pick->gid))
		return false;
	if (!text[0] || strlen(text) >= sizeof(pick->name))
		return false;
	strcpy(pick->name, text);
	return true;
}

static qmla_status_t parse_spec(const char *spec, struct pick picks[PICKS_MAX], size_t *count)
{
	char *copy = strdup(spec), *rest = copy, *item;
	qmla_status_t status = QMLA_OK;

	*count = 0;
	if (!copy)
		return QMLA_ERR_NO_MEMORY;
	while (status == QMLA_OK && (item = strsep(&rest, ",")) != NULL) {
		if (*count == PICKS_MAX || !parse_pick(item, &picks[*count]))
			status = QMLA_ERR_INVALID_ARGUMENT;
		else
			++*count;
	}
	free(copy);
	if (status != QMLA_OK)
		qmc_error("verbs",
			  "RDMA devices '%s': expected name[:port[:gid]] and commas between", spec);
	return status;
}

static const struct pick *find_pick(const struct pick *picks, size_t count, const char *name,
				    int port)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(picks[i].name, name) == 0 &&
		    (picks[i].port < 0 || picks[i].port == port))
			return &picks[i];
	}
	return NULL;
}

/* ---- ports ---- */

static qmla_status_t query_attributes(const struct qmt_port *port, struct ibv_port_attr *attr)
{
	if (port->api->query_port(port->context, port->number, attr) != 0)
		return QMLA_ERR_UNAVAILABLE;
	return attr->state == IBV_PORT_ACTIVE ? QMLA_OK : QMLA_ERR_UNAVAILABLE;
}

qmla_status_t qmt_port_query(const struct qmt_port *port, struct qmt_port_state *state)
{
	struct qmt_port_state fresh = {0};
	struct ibv_port_attr attr;
	struct ibv_gid_entry entry = {0};
	qmla_status_t status = query_attributes(port, &attr);

	if (status != QMLA_OK)
		return status;
	fresh.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
	fresh.lid = attr.lid;
	fresh.mtu = attr.active_mtu;
	if (fresh.ethernet) {
		if (!qmt_gid_choose(port, &fresh))
			return QMLA_ERR_UNAVAILABLE;
	} else {
		/* Routed by LID; the GID's prefix tells one subnet from another. */
		if (port->api->query_gid(port->context, port->number, 0, &entry) == 0)
			fresh.gid = entry.gid;
		fresh.gid_type = IBV_GID_TYPE_IB;
	}
	*state = fresh;
	return QMLA_OK;
}

static bool set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

static bool open_port(const struct qmt_verbs_api *api, struct ibv_device *device, uint8_t number,
		      int gid, struct qmt_port *port)
{
	struct ibv_port_attr attr;

	memset(port, 0, sizeof(*port));
	port->api = api;
	port->number = number;
	port->forced_gid = gid;
	snprintf(port->name, sizeof(port->name), "%s", api->get_device_name(device));
	port->context = api->open_device(device);
	if (!port->context) {
		qmc_warn("verbs", "cannot open RDMA device %s: %s", port->name, strerror(errno));
		return false;
	}
	if (api->query_device(port->context, &port->attr) == 0 &&
	    query_attributes(port, &attr) == QMLA_OK &&
	    qmt_port_query(port, &port->state) == QMLA_OK &&
	    set_nonblocking(port->context->async_fd)) {
		port->max_message = attr.max_msg_sz;
		port->local_alone = port->attr.vendor_id == SOFT_ROCE_VENDOR;
		return true;
	}
	api->close_device(port->context);
	return false;
}

static uint8_t count_ports(const struct qmt_verbs_api *api, struct ibv_device *device)
{
	struct ibv_context *context = api->open_device(device);
	struct ibv_device_attr attr;
	uint8_t count = 0;

	if (!context)
		return 0;
	if (api->query_device(context, &attr) == 0)
		count = attr.phys_port_cnt;
	api->close_device(context);
	return count;
}

static int compare_ports(const void *left, const void *right)
{
	const struct qmt_port *a = left, *b = right;
	int order;

	if (a->distance != b->distance)
		return a->distance < b->distance ? -1 : 1;
	order = strcmp(a->name, b->name);
	return order ? order : a->number - b->number;
}

/* Opens what is active and wanted, up to @room. */
static size_t open_candidates(const struct qmt_verbs_api *api, struct ibv_device **devices,
			      const struct pick *picks, size_t pick_count,
			      const struct qmt_place *place, struct qmt_port *ports, size_t room)
{
	size_t count = 0;

	for (size_t d = 0; devices[d]; d++) {
		const char *name = api->get_device_name(devices[d]);
		uint8_t most = count_ports(api, devices[d]);

		for (uint8_t number = 1; number <= most && count < room; number++) {
			const struct pick *pick = find_pick(picks, pick_count, name, number);

			if ((pick_count > 0 && !pick) ||
			    !open_port(api, devices[d], number, pick ? pick->gid : -1,
				       &ports[count]))
				continue;
			ports[count].distance = qmt_device_distance(api->sysfs, name, place);
			count++;
		}
	}
	return count;
}

static bool all_exist(const struct qmt_verbs_api *api, struct ibv_device **devices,
		      const struct pick *picks, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		size_t d = 0;

		while (devices[d] && strcmp(api->get_device_name(devices[d]), picks[i].name) != 0)
			d++;
		if (!devices[d]) {
			qmc_error("verbs", "there is no RDMA device '%s' (see 'ibv_devices')",
				  picks[i].name);
			return false;
		}
	}
	return true;
}

/* Without a specification a far port is no rail: it would slow the near ones down. */
static size_t keep_near(struct qmt_port *ports, size_t count, bool all)
{
	size_t kept = 0;

	while (kept < count && kept < QMT_RAILS_MAX &&
	       (all || ports[kept].distance == ports[0].distance))
		kept++;
	qmt_ports_close(ports + kept, count - kept);
	return kept;
}

static qmla_status_t open_from(const struct qmt_verbs_api *api, struct ibv_device **devices,
			       const struct pick *picks, size_t pick_count,
			       const struct qmt_place *place, struct qmt_port *ports, size_t *count)
{
	struct qmt_port *candidates;
	size_t found;

	if (!all_exist(api, devices, picks, pick_count))
		return QMLA_ERR_NOT_FOUND;
	candidates = calloc(CANDIDATES_MAX, sizeof(*candidates));
	if (!candidates)
		return QMLA_ERR_NO_MEMORY;
	found = open_candidates(api, devices, picks, pick_count, place, candidates, CANDIDATES_MAX);
	qsort(candidates, found, sizeof(*candidates), compare_ports);
	found = keep_near(candidates, found, pick_count > 0);
	memcpy(ports, candidates, found * sizeof(*ports));
	free(candidates);
	if (found == 0) {
		if (pick_count > 0)
			qmc_error("verbs", "no port of the RDMA devices asked for is active with a "
					   "usable GID (see 'ibv_devinfo -v')");
		return QMLA_ERR_UNAVAILABLE;
	}
	*count = found;
	return QMLA_OK;
}

qmla_status_t qmt_ports_open(const struct qmt_verbs_api *api, const char *spec,
			     const struct qmt_place *place, struct qmt_port *ports, size_t *count)
{
	struct pick picks[PICKS_MAX];
	struct ibv_device **devices;
	size_t pick_count = 0;
	qmla_status_t status = QMLA_OK;
	int listed = 0;

	if (spec && spec[0])
		status = parse_spec(spec, picks, &pick_count);
	if (status != QMLA_OK)
		return status;
	devices = api->get_device_list(&listed);
	if (!devices)
		return QMLA_ERR_UNAVAILABLE;
	status = open_from(api, devices, picks, pick_count, place, ports, count);
	api->free_device_list(devices);
	return status;
}

void qmt_ports_close(struct qmt_port *ports, size_t count)
{
	for (size_t i = 0; i < count; i++)
		ports[i].api->close_device(ports[i].context);
}

/* ---- is there any? ---- */

static bool any_active(const struct qmt_verbs_api *api)
{
	struct ibv_device **devices = api->get_device_list(NULL);
	bool found = false;

	for (size_t d = 0; devices && devices[d] && !found; d++) {
		struct ibv_context *context = api->open_device(devices[d]);
		struct ibv_device_attr attr = {0};
		struct ibv_port_attr port;

		if (!context)
			continue;
		if (api->query_device(context, &attr) != 0)
			attr.phys_port_cnt = 0;
		for (uint8_t n = 1; n <= attr.phys_port_cnt && !found; n++)
			found = api->query_port(context, n, &port) == 0 &&
				port.state == IBV_PORT_ACTIVE;
		api->close_device(context);
	}
	if (devices)
		api->free_device_list(devices);
	return found;
}

bool qmt_verbs_usable(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static unsigned asked;
	static qmc_time_t good_until;
	static bool usable;
	const struct qmt_verbs_api *api = qmt_verbs_api();
	bool answer;

	if (!api)
		return false;
	pthread_mutex_lock(&lock);
	if (asked != qmt_verbs_api_changes() || qmc_clock_now() >= good_until) {
		usable = any_active(api);
		asked = qmt_verbs_api_changes();
		good_until = qmc_clock_after(QMC_NS_PER_S);
	}
	answer = usable;
	pthread_mutex_unlock(&lock);
	return answer;
}
