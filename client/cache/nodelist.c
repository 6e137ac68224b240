/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/nodelist.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define ENTRY_MAX (QML_NODE_NAME_MAX + QMC_ADDRESS_TEXT_MAX + 32)

static qmla_status_t refuse(const char *entry, const char *why)
{
	qmc_error("client", "node '%s': %s; expected [name=]host:port[*weight]", entry, why);
	return QMLA_ERR_INVALID_ARGUMENT;
}

/* Cuts "*weight" off the entry. */
static qmla_status_t parse_weight(const char *whole, char *entry, double *weight)
{
	char *star = strrchr(entry, '*');
	char *end;

	*weight = 1.0;
	if (!star)
		return QMLA_OK;
	*star = '\0';
	*weight = strtod(star + 1, &end);
	if (end == star + 1 || *end || !isfinite(*weight) || *weight <= 0)
		return refuse(whole, "the weight must be a number above 0");
	return QMLA_OK;
}

static qmla_status_t parse_entry(const char *whole, struct qml_nodespec *node)
{
	char entry[ENTRY_MAX];
	struct qmc_address address;
	char *target = entry;
	char *equals;
	qmla_status_t status;

	strcpy(entry, whole);
	status = parse_weight(whole, entry, &node->weight);
	if (status != QMLA_OK)
		return status;
	equals = strchr(entry, '=');
	if (equals) {
		*equals = '\0';
		target = equals + 1;
		if (equals == entry || equals - entry >= QML_NODE_NAME_MAX)
			return refuse(whole, "the name is empty or too long");
	}
	if (qmc_address_parse(target, &address) != QMLA_OK || !address.host[0] || !address.port)
		return refuse(whole, "no address");
	qmc_address_format(&address, node->target);
	strcpy(node->name, entry);
	return QMLA_OK;
}

static qmla_status_t add_entry(const char *begin, size_t length, struct qml_nodespec *nodes,
			       size_t *count)
{
	char entry[ENTRY_MAX];
	qmla_status_t status;

	while (length && isspace((unsigned char)*begin)) {
		begin++;
		length--;
	}
	while (length && isspace((unsigned char)begin[length - 1]))
		length--;
	if (length == 0)
		return QMLA_OK; /* a trailing comma is no mistake */
	if (length >= sizeof(entry))
		return refuse("…", "the entry is too long");
	memcpy(entry, begin, length);
	entry[length] = '\0';
	if (*count == QML_NODES_MAX)
		return refuse(entry, "too many nodes");
	status = parse_entry(entry, &nodes[*count]);
	if (status != QMLA_OK)
		return status;
	for (size_t i = 0; i < *count; i++) {
		if (strcmp(nodes[i].name, nodes[*count].name) == 0)
			return refuse(entry, "this name is in the list already");
	}
	++*count;
	return QMLA_OK;
}

qmla_status_t qml_nodelist_parse(const char *text, struct qml_nodespec **nodes, size_t *count)
{
	struct qml_nodespec *list = calloc(QML_NODES_MAX, sizeof(*list));
	qmla_status_t status = QMLA_OK;
	size_t found = 0;

	if (!list)
		return QMLA_ERR_NO_MEMORY;
	while (status == QMLA_OK && *text) {
		size_t length = strcspn(text, ",");

		status = add_entry(text, length, list, &found);
		text += length;
		text += *text == ',';
	}
	if (status == QMLA_OK && found == 0)
		status = refuse("", "the list of nodes is empty");
	if (status != QMLA_OK) {
		free(list);
		return status;
	}
	*nodes = list;
	*count = found;
	return QMLA_OK;
}
