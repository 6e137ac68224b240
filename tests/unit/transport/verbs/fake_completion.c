/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues and channels of the fake verbs. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
	struct fake_channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->base.context = context;
	channel->base.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	fake_enter();
	fake.channels++;
	fake_leave();
	return &channel->base;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	fake_enter();
	fake.channels--;
	fake_leave();
	free(channel);
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *user,
				struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = calloc(1, sizeof(*cq));

	(void)vector;
	fake_demand(cq != NULL, "no memory");
	cq->base.context = context;
	cq->base.cq_context = user;
	cq->base.cqe = entries;
	cq->channel = (struct fake_channel *)channel;
	cq->size = (unsigned)entries;
	cq->entries = calloc(cq->size, sizeof(*cq->entries));
	fake_demand(cq->entries != NULL, "no memory");
	fake_enter();
	fake.cqs++;
	fake_leave();
	return &cq->base;
}

/* Events that nobody has taken yet go with it. */
static void forget_events(struct fake_channel *channel, const struct fake_cq *cq)
{
	unsigned kept = channel->head;
	eventfd_t value;

	for (unsigned i = channel->head; i != channel->tail; i++) {
		struct fake_cq *at = channel->events[i % CHANNEL_MAX];

		if (at == cq)
			(void)eventfd_read(channel->base.fd, &value);
		else
			channel->events[kept++ % CHANNEL_MAX] = at;
	}
	channel->tail = kept;
}

static int destroy_cq(struct ibv_cq *base)
{
	struct fake_cq *cq = (struct fake_cq *)base;

	fake_enter();
	forget_events(cq->channel, cq);
	fake_demand(cq->delivered == cq->acknowledged, "a CQ goes with events not acknowledged");
	fake.cqs--;
	fake_leave();
	free(cq->entries);
	free(cq);
	return 0;
}

static int req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	(void)solicited_only;
	fake_enter();
	((struct fake_cq *)base)->armed = true;
	fake_leave();
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **user)
{
	struct fake_channel *channel = (struct fake_channel *)base;
	struct fake_cq *got;
	eventfd_t value;

	fake_enter();
	if (channel->head == channel->tail || eventfd_read(base->fd, &value) != 0) {
		fake_leave();
		errno = EAGAIN;
		return -1;
	}
	got = channel->events[channel->head++ % CHANNEL_MAX];
	got->delivered++;
	*cq = &got->base;
	*user = got->base.cq_context;
	fake_leave();
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	fake_enter();
	((struct fake_cq *)cq)->acknowledged += count;
	fake_leave();
}

void fake_push_locked(struct fake_cq *cq, const struct ibv_wc *wc, struct fake_qp *sender,
		      uint64_t place)
{
	fake_demand(cq->tail - cq->head < cq->size, "a CQ overruns");
	cq->entries[cq->tail++ % cq->size] = (struct fake_wc){*wc, sender, place};
	if (!cq->armed)
		return;
	cq->armed = false;
	fake_demand(cq->channel->tail - cq->channel->head < CHANNEL_MAX, "a channel overruns");
	cq->channel->events[cq->channel->tail++ % CHANNEL_MAX] = cq;
	(void)eventfd_write(cq->channel->base.fd, 1);
}

static int poll_cq(struct ibv_cq *base, int entries, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)base;
	int n = 0;

	fake_enter();
	while (n < entries && cq->head != cq->tail) {
		struct fake_wc *entry = &cq->entries[cq->head++ % cq->size];

		if (entry->sender && entry->place + 1 > entry->sender->retired)
			entry->sender->retired = entry->place + 1;
		wc[n++] = entry->wc;
	}
	fake_leave();
	return n;
}

void fake_completion_ops(struct qmt_verbs_api *api)
{
	api->create_comp_channel = create_comp_channel;
	api->destroy_comp_channel = destroy_comp_channel;
	api->create_cq = create_cq;
	api->destroy_cq = destroy_cq;
	api->req_notify_cq = req_notify_cq;
	api->get_cq_event = get_cq_event;
	api->ack_cq_events = ack_cq_events;
	api->poll_cq = poll_cq;
}
