/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/mail.h"

#include <stdlib.h>
#include <string.h>

#define STRIDE 128 /* a message and no cache line in common with the next */
#define PAGE   4096

qmla_status_t qmt_mail_create(const struct qmt_verbs_api *api, struct ibv_pd *pd, uint32_t sends,
			      uint32_t receives, struct qmt_mail *mail)
{
	size_t bytes = ((size_t)sends + receives) * STRIDE;
	struct qmt_mail made = {.sends = sends, .receives = receives};

	bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	made.memory = aligned_alloc(PAGE, bytes);
	if (!made.memory)
		return QMLA_ERR_NO_MEMORY;
	memset(made.memory, 0, bytes);
	made.mr = api->reg_mr(pd, made.memory, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!made.mr) {
		free(made.memory);
		return QMLA_ERR_RESOURCE_EXHAUSTED;
	}
	*mail = made;
	return QMLA_OK;
}

void qmt_mail_destroy(const struct qmt_verbs_api *api, struct qmt_mail *mail)
{
	if (mail->mr)
		api->dereg_mr(mail->mr);
	free(mail->memory);
	memset(mail, 0, sizeof(*mail));
}

static uint8_t *receive_buffer(const struct qmt_mail *mail, uint32_t slot)
{
	return mail->memory + ((size_t)mail->sends + slot) * STRIDE;
}

struct ibv_sge qmt_mail_write(struct qmt_mail *mail, const struct qmt_message *message)
{
	uint8_t *buffer = mail->memory + mail->sent++ % mail->sends * STRIDE;

	qmt_message_encode(message, buffer);
	return (struct ibv_sge){(uint64_t)(uintptr_t)buffer, QMT_MESSAGE_BYTES, mail->mr->lkey};
}

qmla_status_t qmt_mail_receive(const struct qmt_mail *mail, const struct qmt_qp *qp, uint32_t slot,
			       uint64_t wr_id)
{
	struct ibv_sge sge = {(uint64_t)(uintptr_t)receive_buffer(mail, slot), STRIDE,
			      mail->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	return qp->port->api->post_recv(qp->qp, &wr, &bad) == 0 ? QMLA_OK : QMLA_ERR_UNAVAILABLE;
}

qmla_status_t qmt_mail_read(const struct qmt_mail *mail, uint32_t slot, size_t bytes,
			    struct qmt_message *message)
{
	return qmt_message_decode(receive_buffer(mail, slot), bytes, message);
}
