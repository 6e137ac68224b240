/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Internal to attention*.c: the number type, and what these files share. They are compiled
 * twice; with QMW_REAL_DOUBLE every name below stands for its attention64.h counterpart.
 */
#ifndef QMW_CALIBRATE_ATTENTION_REAL_H
#define QMW_CALIBRATE_ATTENTION_REAL_H

#include <cblas.h>
#include <math.h>
#include <stddef.h>

#ifdef QMW_REAL_DOUBLE
#include "client/calibrate/attention64.h"

typedef double qmw_real;

#define QMW_GEMM cblas_dgemm

#define qmw_attention_weights    qmw_attention_weights64
#define qmw_near                 qmw_near64
#define qmw_rows                 qmw_rows64
#define qmw_operator             qmw_operator64
#define qmw_operator_create      qmw_operator64_create
#define qmw_operator_destroy     qmw_operator64_destroy
#define qmw_passage              qmw_passage64
#define qmw_passage_create       qmw_passage64_create
#define qmw_passage_destroy      qmw_passage64_destroy
#define qmw_passage_tokens       qmw_passage64_tokens
#define qmw_passage_content      qmw_passage64_content
#define qmw_passage_key          qmw_passage64_key
#define qmw_passage_query        qmw_passage64_query
#define qmw_passage_output       qmw_passage64_output
#define qmw_passage_vjp          qmw_passage64_vjp
#define qmw_passage_jvp          qmw_passage64_jvp
#define qmw_passage_loss         qmw_passage64_loss
#define qmw_passage_positional   qmw_passage64_positional
#define qmw_passage_query_energy qmw_passage64_query_energy
#define qmw_passage_value_norms  qmw_passage64_value_norms
#define qmw_passage_rotate       qmw_passage64_rotate
#define qmw_passage_turn         qmw_passage64_turn
#define qmw_passage_weighted     qmw_passage64_weighted
#define qmw_head_scratch         qmw_head_scratch64
#define qmw_head_scratch_init    qmw_head_scratch64_init
#define qmw_head_scratch_fini    qmw_head_scratch64_fini
#define qmw_head_load            qmw_head64_load
#define qmw_head_weights         qmw_head64_weights
#define qmw_head_mask_near       qmw_head64_mask_near
#define qmw_head_near_columns    qmw_head64_near_columns
#else
#include "client/calibrate/attention.h"

typedef float qmw_real;

#define QMW_GEMM cblas_sgemm
#endif

/** Queries of one step. */
#define QMW_QUERY_BLOCK 128u

struct qmw_operator {
	struct qmw_config config;
	struct qmw_rope rope;
	struct qmw_attention_weights weights;
};

struct qmw_passage {
	const struct qmw_operator *op;
	uint32_t n;
	qmw_real *query;         /* [n][H][d_n + d_r], rotated */
	qmw_real *content;       /* [n][d_c] */
	qmw_real *key;           /* [n][d_r] */
	qmw_real *cosine, *sine; /* [n][d_r / 2], amplitude in */
};

/* Queries [first, first + rows) against keys [0, keys). */
struct qmw_span {
	uint32_t first, rows, keys;
};

/* Rows of one head, expanded from the cache: K_h = [W_UK c | RoPE k], V_h = W_UV c. */
struct qmw_head_rows {
	qmw_real *key;   /* [n][d_n + d_r] */
	qmw_real *value; /* [n][d_v] */
};

struct qmw_head_scratch {
	qmw_real *store;
	qmw_real *weighted, *weighted_near; /* Gamma u; [n][d_c] */
	qmw_real *weighted_value;       /* what V is made of; the same as weighted, or its own */
	qmw_real *turned, *turned_near; /* RoPE k; [n][d_r] */
	struct qmw_head_rows far, near; /* near.key NULL: there are none */
	qmw_real *weight;               /* P [128][n], ld n */
	qmw_real *spare;                /* [128][n] */
	const struct qmw_near *rule;
	uint32_t head;
};

static inline size_t qmw_query_dim(const struct qmw_operator *op)
{
	return (size_t)op->config.nope_dim + op->config.rope_dim;
}

/* The head's rows of kv_b: d_n of W_UK, then d_v of W_UV. */
static inline const qmw_real *qmw_key_up(const struct qmw_operator *op, uint32_t head)
{
	size_t rows = (size_t)op->config.nope_dim + op->config.value_dim;

	return op->weights.kv_b + head * rows * op->config.content_dim;
}

static inline const qmw_real *qmw_value_up(const struct qmw_operator *op, uint32_t head)
{
	return qmw_key_up(op, head) + (size_t)op->config.nope_dim * op->config.content_dim;
}

/* C[m][n] = alpha A B + beta C; @p a transposed: A is stored [k][m], @p b: B is stored [n][k]. */
static inline void qmw_gemm(bool a_transposed, bool b_transposed, size_t m, size_t n, size_t k,
			    qmw_real alpha, const qmw_real *a, size_t lda, const qmw_real *b,
			    size_t ldb, qmw_real beta, qmw_real *c, size_t ldc)
{
	QMW_GEMM(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
		 b_transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a,
		 (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* Gamma u of rows [n][d_c]. */
void qmw_passage_weighted(const struct qmw_passage *passage, const qmw_real *content,
			  qmw_real *weighted);

/* Rotates rows of @p stride numbers by their position; @p transposed: by its transpose. */
void qmw_passage_turn(const struct qmw_passage *passage, bool transposed, qmw_real *rows,
		      size_t stride, uint32_t heads);

/* Scratch for one call; takes what does not depend on the head from @p rows (NULL: exact). */
qmla_status_t qmw_head_scratch_init(const struct qmw_passage *passage, const struct qmw_rows *rows,
				    struct qmw_head_scratch *scratch);
void qmw_head_scratch_fini(struct qmw_head_scratch *scratch);

/* Expands one head's rows. */
void qmw_head_load(const struct qmw_passage *passage, uint32_t head,
		   struct qmw_head_scratch *scratch);

/* P of a block of queries into scratch->weight, zero where the mask is. */
void qmw_head_weights(const struct qmw_passage *passage, const struct qmw_span *span,
		      struct qmw_head_scratch *scratch);

/* Columns at the end, [*first, span->keys), that hold near rows of any query but the sinks. */
uint32_t qmw_head_near_columns(const struct qmw_head_scratch *scratch, const struct qmw_span *span);

/* Copies the near (or, @p near false, the far) entries of @p from to @p to, zero elsewhere.
 * The two may be the same. */
void qmw_head_mask_near(const struct qmw_head_scratch *scratch, const struct qmw_span *span,
			bool near, const qmw_real *from, qmw_real *to, size_t stride);

static inline struct qmw_span qmw_query_span(uint32_t n, uint32_t first)
{
	struct qmw_span span = {.first = first,
				.rows = n - first < QMW_QUERY_BLOCK ? n - first : QMW_QUERY_BLOCK};

	span.keys = first + span.rows;
	return span;
}

#endif /* QMW_CALIBRATE_ATTENTION_REAL_H */
