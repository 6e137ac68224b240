/* SPDX-License-Identifier: Apache-2.0 */
/* Domains, registrations, windows and address handles of the fake verbs. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
	struct fake_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->base.context = context;
	fake_enter();
	fake.pds++;
	fake_leave();
	return &pd->base;
}

struct fake_pd *fake_pd_of(struct ibv_pd *pd)
{
	return (struct fake_pd *)pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	fake_enter();
	fake_demand(fake_pd_of(pd)->users == 0, "a protection domain is in use");
	fake.pds--;
	fake_leave();
	free(pd);
	return 0;
}

uint32_t fake_place(void **table, uint32_t *next, void *object)
{
	for (uint32_t tries = 0; tries < OBJECTS_MAX; tries++) {
		uint32_t i = ++*next % OBJECTS_MAX;

		if (i != 0 && !table[i]) {
			table[i] = object;
			return i;
		}
	}
	fake_demand(false, "too many objects");
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *base, size_t bytes, int access)
{
	const struct fake_device *device = fake_facts(pd->context);
	struct fake_mr *mr;

	fake_enter();
	if ((device->max_mr_size && bytes > device->max_mr_size) ||
	    (device->real_mr_size && bytes > device->real_mr_size)) {
		fake_leave();
		errno = ENOMEM;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	fake_demand(mr != NULL, "no memory");
	mr->base.context = pd->context;
	mr->base.pd = pd;
	mr->base.addr = base;
	mr->base.length = bytes;
	mr->access = access;
	mr->base.lkey = fake_place((void **)fake.mrs, &fake.next_mr, mr) << 8;
	mr->base.rkey = mr->base.lkey;
	fake_pd_of(pd)->users++;
	fake.registrations++;
	fake_leave();
	return &mr->base;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
				    int fd, int access)
{
	const struct fake_device *device = fake_facts(pd->context);

	(void)offset;
	if (fd < 0 || device->dmabuf_errno != EBADF) {
		errno = fd < 0 ? device->dmabuf_errno : EOPNOTSUPP;
		return NULL;
	}
	if (access & IBV_ACCESS_MW_BIND) {
		errno = EINVAL;
		return NULL;
	}
	return reg_mr(pd, (void *)(uintptr_t)iova, bytes, access);
}

static int dereg_mr(struct ibv_mr *base)
{
	struct fake_mr *mr = (struct fake_mr *)base;

	fake_enter();
	fake_demand(mr->windows == 0, "a registration goes while a window is bound to it");
	fake.mrs[base->lkey >> 8] = NULL;
	fake_pd_of(base->pd)->users--;
	fake_leave();
	free(mr);
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct fake_mw *mw;

	fake_enter();
	if (!fake_facts(pd->context)->windows || type != IBV_MW_TYPE_2) {
		fake_leave();
		errno = EOPNOTSUPP;
		return NULL;
	}
	mw = calloc(1, sizeof(*mw));
	fake_demand(mw != NULL, "no memory");
	mw->base.context = pd->context;
	mw->base.pd = pd;
	mw->base.type = type;
	mw->index = fake_place((void **)fake.mws, &fake.next_mw, mw);
	mw->base.rkey = mw->rkey = WINDOW_KEY | mw->index << 8;
	fake_pd_of(pd)->users++;
	fake_leave();
	return &mw->base;
}

void fake_unbind_locked(struct fake_mw *mw)
{
	if (mw->valid)
		mw->mr->windows--;
	mw->valid = false;
}

static int dealloc_mw(struct ibv_mw *base)
{
	struct fake_mw *mw = (struct fake_mw *)base;

	fake_enter();
	fake_unbind_locked(mw);
	fake.mws[mw->index] = NULL;
	fake_pd_of(base->pd)->users--;
	fake_leave();
	free(mw);
	return 0;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah;

	if (fake_facts(pd->context)->bad_gid[attr->grh.sgid_index]) {
		errno = ENETUNREACH;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	return ah;
}

static int destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}

void fake_memory_ops(struct qmt_verbs_api *api)
{
	api->alloc_pd = alloc_pd;
	api->dealloc_pd = dealloc_pd;
	api->reg_mr = reg_mr;
	api->reg_dmabuf_mr = reg_dmabuf_mr;
	api->dereg_mr = dereg_mr;
	api->alloc_mw = alloc_mw;
	api->dealloc_mw = dealloc_mw;
	api->create_ah = create_ah;
	api->destroy_ah = destroy_ah;
}
