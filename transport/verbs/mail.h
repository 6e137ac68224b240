/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The registered buffers behind one queue pair's messages: a ring for those sent, one
 * buffer for each receive. One thread at a time.
 */
#ifndef QMT_VERBS_MAIL_H
#define QMT_VERBS_MAIL_H

#include "transport/verbs/message.h"

struct qmt_mail {
	uint8_t *memory;
	struct ibv_mr *mr;
	uint32_t sends, receives;
	uint64_t sent, done; /**< messages, counting up */
};

/** QMLA_ERR_NO_MEMORY, QMLA_ERR_RESOURCE_EXHAUSTED. */
qmla_status_t qmt_mail_create(const struct qmt_verbs_api *api, struct ibv_pd *pd, uint32_t sends,
			      uint32_t receives, struct qmt_mail *mail);

/** After the queue pair is destroyed. Accepts a zeroed one. */
void qmt_mail_destroy(const struct qmt_verbs_api *api, struct qmt_mail *mail);

/** True when another message can be sent. */
static inline bool qmt_mail_has_room(const struct qmt_mail *mail)
{
	return mail->sent - mail->done < mail->sends;
}

/** Encodes @p message into the next buffer, which is the device's until qmt_mail_sent. */
struct ibv_sge qmt_mail_write(struct qmt_mail *mail, const struct qmt_message *message);

/** The oldest message sent is out. */
static inline void qmt_mail_sent(struct qmt_mail *mail)
{
	mail->done++;
}

/** Posts receive buffer @p slot with @p wr_id. */
qmla_status_t qmt_mail_receive(const struct qmt_mail *mail, const struct qmt_qp *qp, uint32_t slot,
			       uint64_t wr_id);

/** What has come into @p slot. QMLA_ERR_FORMAT. */
qmla_status_t qmt_mail_read(const struct qmt_mail *mail, uint32_t slot, size_t bytes,
			    struct qmt_message *message);

#endif /* QMT_VERBS_MAIL_H */
