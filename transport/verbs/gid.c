/* SPDX-License-Identifier: Apache-2.0 */
/* Which GID of a port to use. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/device_internal.h"

#define GIDS_MAX 1024

enum rank {
	RANK_V2_IPV4,       /* routable, on a net device that is seen here */
	RANK_V2_IPV6,       /* likewise */
	RANK_V2_FOREIGN,    /* routable; its net device belongs to another namespace */
	RANK_V2_LINK_LOCAL, /* one link only */
	RANK_V1,            /* one link only, and another encapsulation */
	RANK_USELESS = -1,
};

static bool is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(gid->raw, prefix, sizeof(prefix)) == 0;
}

static bool is_zero(const union ibv_gid *gid)
{
	static const union ibv_gid none;

	return memcmp(gid->raw, none.raw, sizeof(none.raw)) == 0;
}

static bool is_link_local(const union ibv_gid *gid)
{
	if (is_ipv4(gid))
		return gid->raw[12] == 169 && gid->raw[13] == 254;
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

int qmt_gid_rank(const struct ibv_gid_entry *entry, bool visible)
{
	if (is_zero(&entry->gid))
		return RANK_USELESS;
	if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
		return RANK_V1;
	if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
		return RANK_USELESS;
	if (is_link_local(&entry->gid))
		return RANK_V2_LINK_LOCAL;
	if (!visible)
		return RANK_V2_FOREIGN;
	return is_ipv4(&entry->gid) ? RANK_V2_IPV4 : RANK_V2_IPV6;
}

static bool is_visible(const struct qmt_port *port, const struct ibv_gid_entry *entry)
{
	char name[IF_NAMESIZE];

	return entry->ndev_ifindex != 0 &&
	       port->api->interface_name(entry->ndev_ifindex, name) != NULL;
}

/* An address handle to oneself: the provider resolves it only for a GID that works. */
static bool proves_itself(const struct qmt_port *port, const struct ibv_gid_entry *entry)
{
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = port->number,
		.grh = {.dgid = entry->gid,
			.sgid_index = (uint8_t)entry->gid_index,
			.hop_limit = 255},
	};
	struct ibv_pd *pd = port->api->alloc_pd(port->context);
	struct ibv_ah *ah = NULL;

	if (!pd)
		return false;
	ah = port->api->create_ah(pd, &attr);
	if (ah)
		port->api->destroy_ah(ah);
	port->api->dealloc_pd(pd);
	return ah != NULL;
}

static void take(const struct ibv_gid_entry *entry, struct qmt_port_state *state)
{
	state->gid = entry->gid;
	state->gid_index = entry->gid_index;
	state->gid_type = entry->gid_type;
}

static bool take_forced(const struct qmt_port *port, struct qmt_port_state *state)
{
	struct ibv_gid_entry entry = {0};
	uint32_t index = (uint32_t)port->forced_gid;

	if (port->api->query_gid(port->context, port->number, index, &entry) != 0)
		return false;
	take(&entry, state);
	return true;
}

/* The best of @rank that proves itself; @first is the best that did not, if there was none yet. */
static bool take_rank(const struct qmt_port *port, const struct ibv_gid_entry *entries, long count,
		      int rank, struct qmt_port_state *state, const struct ibv_gid_entry **first)
{
	for (long i = 0; i < count; i++) {
		const struct ibv_gid_entry *entry = &entries[i];

		if (entry->port_num != port->number ||
		    qmt_gid_rank(entry, is_visible(port, entry)) != rank)
			continue;
		if (proves_itself(port, entry)) {
			take(entry, state);
			return true;
		}
		if (!*first)
			*first = entry;
	}
	return false;
}

bool qmt_gid_choose(const struct qmt_port *port, struct qmt_port_state *state)
{
	const struct ibv_gid_entry *first = NULL;
	struct ibv_gid_entry *entries;
	bool found = false;
	long count;

	if (port->forced_gid >= 0)
		return take_forced(port, state);
	/* One call for the table: it may have a thousand places, most of them empty. */
	entries = calloc(GIDS_MAX, sizeof(*entries));
	if (!entries)
		return false;
	count = port->api->query_gid_table(port->context, entries, GIDS_MAX);
	for (int rank = RANK_V2_IPV4; rank <= RANK_V1 && !found; rank++)
		found = take_rank(port, entries, count, rank, state, &first);
	/* None is proven, which some providers cannot do: the handshake will tell. */
	if (!found && first) {
		take(first, state);
		found = true;
	}
	free(entries);
	return found;
}

void qmt_port_text(const struct qmt_port_state *state, char *text)
{
	char address[INET6_ADDRSTRLEN] = "";

	if (!state->ethernet) {
		snprintf(text, QMT_DEVICE_NAME_MAX, "InfiniBand lid %u", state->lid);
		return;
	}
	if (is_ipv4(&state->gid))
		inet_ntop(AF_INET, state->gid.raw + 12, address, sizeof(address));
	else
		inet_ntop(AF_INET6, state->gid.raw, address, sizeof(address));
	snprintf(text, QMT_DEVICE_NAME_MAX, "RoCE %s %s",
		 state->gid_type == IBV_GID_TYPE_ROCE_V1 ? "v1" : "v2", address);
}
