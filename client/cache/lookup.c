/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "client/cache/client.h"
#include "client/cache/search.h"

static qmla_status_t search_presence(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				     uint32_t timeout_ms, bool prefix, struct qml_search *search)
{
	qmla_status_t status = qml_client_check_keys(client, keys, count);

	if (status != QMLA_OK)
		return status;
	*search = (struct qml_search){
		.client = client,
		.keys = keys,
		.count = count,
		.prefix = prefix,
		.deadline = qml_client_deadline(timeout_ms),
	};
	status = qml_search_init(search);
	if (status != QMLA_OK)
		return status;
	status = qml_search_settle(search);
	if (status != QMLA_OK)
		qml_search_fini(search);
	return status;
}

qmla_status_t qmla_client_lookup(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				 uint32_t timeout_ms, size_t *prefix)
{
	struct qml_search search;
	qmla_status_t status;

	if (!prefix)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = search_presence(client, keys, count, timeout_ms, true, &search);
	if (status != QMLA_OK)
		return status;
	*prefix = qml_search_run(&search);
	qml_search_fini(&search);
	return QMLA_OK;
}

qmla_status_t qmla_client_probe(qmla_client_t *client, const qmla_key_t *keys, size_t count,
				uint32_t timeout_ms, qmla_status_t *statuses)
{
	struct qml_search search;
	qmla_status_t status;

	if (count && !statuses)
		return QMLA_ERR_INVALID_ARGUMENT;
	status = search_presence(client, keys, count, timeout_ms, false, &search);
	if (status != QMLA_OK)
		return status;
	if (count)
		memcpy(statuses, search.statuses, count * sizeof(*statuses));
	qml_search_fini(&search);
	return QMLA_OK;
}
