/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/domain.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define DEVICES_VARIABLE "QMLA_RDMA_DEVICES"

struct shared_area {
	struct qmt_area area; /* first: what callers see */
	unsigned references;
	LIST_ENTRY(shared_area) link;
};

LIST_HEAD(area_list, shared_area);

struct shared_domain {
	struct qmt_domain domain; /* first: what callers see */
	unsigned references;
	struct area_list areas;
};

/* Of the current domain, and of the references and areas of all. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_domain *current;

static void destroy(struct shared_domain *shared)
{
	struct qmt_domain *domain = &shared->domain;

	qmt_monitor_destroy(domain->monitor);
	for (size_t i = 0; i < domain->count; i++) {
		if (domain->pds[i])
			domain->api->dealloc_pd(domain->pds[i]);
	}
	qmt_ports_close(domain->ports, domain->count);
	free(shared);
}

/* Memory comes later; where this thread runs is the best guess at where it will lie. */
static struct qmt_place place_here(void)
{
	struct qmt_place place = {.numa_node = QMT_NUMA_UNKNOWN};
	unsigned cpu, node;

	if (getcpu(&cpu, &node) == 0)
		place.numa_node = (int)node;
	return place;
}

static qmla_status_t create(const struct qmt_verbs_api *api, struct shared_domain **out)
{
	struct shared_domain *shared = calloc(1, sizeof(*shared));
	const struct qmt_place place = place_here();
	struct qmt_domain *domain;
	qmla_status_t status;

	if (!shared)
		return QMLA_ERR_NO_MEMORY;
	domain = &shared->domain;
	domain->api = api;
	domain->gpu = qmt_gpu_api();
	LIST_INIT(&shared->areas);
	status = qmt_ports_open(api, getenv(DEVICES_VARIABLE), &place, domain->ports,
				&domain->count);
	if (status != QMLA_OK) {
		domain->count = 0;
		goto err;
	}
	for (size_t i = 0; i < domain->count; i++) {
		domain->pds[i] = api->alloc_pd(domain->ports[i].context);
		if (!domain->pds[i]) {
			status = QMLA_ERR_RESOURCE_EXHAUSTED;
			goto err;
		}
	}
	status = qmt_monitor_create(domain->ports, domain->count, &domain->monitor);
	if (status != QMLA_OK)
		goto err;
	*out = shared;
	return QMLA_OK;

err:
	destroy(shared);
	return status;
}

qmla_status_t qmt_domain_get(struct qmt_domain **out)
{
	const struct qmt_verbs_api *api = qmt_verbs_api();
	qmla_status_t status = QMLA_OK;

	if (!api)
		return QMLA_ERR_UNSUPPORTED;
	pthread_mutex_lock(&lock);
	/* One with a dead device goes with its last endpoint; others start on a fresh one. */
	if (current && qmt_monitor_is_fatal(current->domain.monitor))
		current = NULL;
	if (!current)
		status = create(api, &current);
	if (status == QMLA_OK) {
		current->references++;
		*out = &current->domain;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

void qmt_domain_put(struct qmt_domain *domain)
{
	struct shared_domain *shared = (struct shared_domain *)domain;
	bool last;

	if (!shared)
		return;
	pthread_mutex_lock(&lock);
	last = --shared->references == 0;
	if (last && current == shared)
		current = NULL;
	pthread_mutex_unlock(&lock);
	if (last)
		destroy(shared);
}

/* ---- memory ---- */

static struct shared_area *find_area(struct shared_domain *shared, const struct qmt_memory *memory)
{
	struct shared_area *area;

	for (area = LIST_FIRST(&shared->areas); area; area = LIST_NEXT(area, link)) {
		if (area->area.base == memory->base && area->area.bytes == memory->bytes)
			return area;
	}
	return NULL;
}

static void end_registrations(struct qmt_domain *domain, struct qmt_area *area)
{
	for (size_t i = 0; i < domain->count; i++)
		qmt_registration_end(domain->api, &area->rails[i]);
}

static void mark_near(const struct qmt_domain *domain, struct qmt_area *area, const char *pci)
{
	struct qmt_place place = {.numa_node = QMT_NUMA_UNKNOWN};
	int distances[QMT_RAILS_MAX], least = INT_MAX;

	if (area->gpu && pci[0])
		place.pci_device = pci;
	else
		place.numa_node = qmt_memory_numa_node(area->base);
	for (size_t i = 0; i < domain->count; i++) {
		distances[i] =
			qmt_device_distance(domain->api->sysfs, domain->ports[i].name, &place);
		if (distances[i] < least)
			least = distances[i];
	}
	for (size_t i = 0; i < domain->count; i++)
		area->near[i] = distances[i] == least;
}

/* A GPU's memory that no device reaches is no error: it is staged. */
static qmla_status_t register_area(struct qmt_domain *domain, const struct qmt_memory *memory,
				   struct qmt_area *area)
{
	char pci[16] = "";
	qmla_status_t status = QMLA_OK;

	area->base = memory->base;
	area->bytes = memory->bytes;
	area->gpu = domain->gpu && domain->gpu->owns(memory->base, pci);
	mark_near(domain, area, pci);
	for (size_t i = 0; i < domain->count && status == QMLA_OK; i++)
		status = qmt_registration_create(&domain->ports[i], domain->pds[i], domain->gpu,
						 memory, IBV_ACCESS_LOCAL_WRITE, &area->rails[i]);
	if (status == QMLA_OK) {
		qmc_info("verbs", "%llu bytes of local memory registered: %s",
			 (unsigned long long)memory->bytes,
			 qmt_memory_kind_text(area->rails[0].kind));
		return QMLA_OK;
	}
	end_registrations(domain, area);
	area->staged = area->gpu && status == QMLA_ERR_UNSUPPORTED;
	return area->staged ? QMLA_OK : status;
}

static qmla_status_t add_area(struct shared_domain *shared, const struct qmt_memory *memory,
			      struct shared_area **out)
{
	struct shared_area *made = calloc(1, sizeof(*made));
	qmla_status_t status;

	if (!made)
		return QMLA_ERR_NO_MEMORY;
	status = register_area(&shared->domain, memory, &made->area);
	if (status != QMLA_OK) {
		free(made);
		return status;
	}
	LIST_INSERT_HEAD(&shared->areas, made, link);
	*out = made;
	return QMLA_OK;
}

qmla_status_t qmt_domain_register(struct qmt_domain *domain, const struct qmt_memory *memory,
				  struct qmt_area **out)
{
	struct shared_domain *shared = (struct shared_domain *)domain;
	struct shared_area *area;
	qmla_status_t status = QMLA_OK;

	/* Registering takes long; whoever wants the same memory had better wait for it. */
	pthread_mutex_lock(&lock);
	area = find_area(shared, memory);
	if (!area)
		status = add_area(shared, memory, &area);
	if (status == QMLA_OK) {
		area->references++;
		*out = &area->area;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

void qmt_domain_unregister(struct qmt_domain *domain, struct qmt_area *base)
{
	struct shared_area *area = (struct shared_area *)base;

	pthread_mutex_lock(&lock);
	if (--area->references == 0) {
		LIST_REMOVE(area, link);
		end_registrations(domain, &area->area);
		free(area);
	}
	pthread_mutex_unlock(&lock);
}
