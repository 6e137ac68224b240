/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The kernels behind one table. kernels/cpu is the reference and always built;
 * kernels/cuda, where built, is held to it by parity tests.
 *
 * Shapes use: T tokens, B requests, H heads, d_c content_dim, d_r rope_dim.
 * All arrays are row-major and dense unless a stride is given. On the CUDA table
 * pointers are device pointers unless said otherwise, calls are asynchronous on
 * `stream` (a cudaStream_t), allocate nothing and may be captured in a graph; on
 * the CPU table pointers are host pointers, `stream` is ignored and calls are
 * synchronous. Structures themselves are host memory, read before the call
 * returns. Any thread; the tables hold no state.
 *
 * "Cache coordinates": the latent as it is cached, z = u R S - mean (paper.md,
 * Transformations; accuracy.md, 2). Softmax does not see a mean common to all
 * keys; the caller adds it to the output latent by `content_mean` below.
 */
#ifndef QMK_OPS_H
#define QMK_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

enum qmk_dtype { QMK_F32 = 0, QMK_BF16 = 1 };

enum qmk_pairing {
	QMK_INTERLEAVED = 0 /**< (2j, 2j+1) */,
	QMK_HALF_SPLIT = 1 /**< (j, j + d_r/2) */
};

/** Rotary embedding: angle of pair j at position p is p * inv_freq[j]. */
struct qmk_rope {
	enum qmk_pairing pairing;
	const float *inv_freq; /**< [d_r/2], YaRN already applied */
	float amplitude;       /**< factor on cos and sin, 1 without YaRN's mscale */
};

/**
 * Per-layer constants, all optional (NULL: identity, zero, plain rounding). Matrices on a
 * device start at multiples of 16 bytes.
 */
struct qmk_constants {
	const float *content_mean; /**< [d_c], cache coordinates; subtracted before quantising */
	const float *rope_mean;    /**< [d_r], before rotation */
	/**
	 * Feedback rounding (accuracy.md, recipe 4): sensitivity = A^T D A with A unit
	 * lower triangular, row-major [n][n]; target_i = z_i + sum_{j<i} A_ij (z_j - zhat_j).
	 */
	const float *content_feedback; /**< A, [d_c][d_c] */
	const float *content_weight;   /**< D, [d_c] */
	const float *rope_feedback;    /**< [d_r][d_r] */
	const float *rope_weight;      /**< [d_r] */
	/**
	 * X, row-major [d_c][d_r]: content takes back what the RoPE codes did to the output.
	 * target_i = z_i + sum_j X_ij (k_j - khat_j) + sum_{j<i} A_ij (z_j - zhat_j), the RoPE key
	 * being rounded first. Writers only.
	 */
	const float *cross_feedback;
};

/** The pool that holds blocks: block s starts at base + s * stride. */
struct qmk_pool {
	void *base;
	uint64_t stride; /**< bytes, >= layout->block_bytes, multiple of 128 */
};

/** Quantise and pack whole pages of one layer. */
struct qmk_pack_args {
	const struct qmk_layout *layout;
	const struct qmk_constants *constants; /**< NULL: none; paper-c4r4 ignores them */
	struct qmk_pool pool;
	uint32_t layer;
	uint32_t pages;        /**< N */
	const uint32_t *slots; /**< [N]: where page n goes */
	/** [N*64][content_stride], cache coordinates before the mean is taken. */
	const void *content;
	const void *rope;        /**< [N*64][rope_stride]; rotated only for paper-c4r4 */
	uint64_t content_stride; /**< elements between rows */
	uint64_t rope_stride;
	enum qmk_dtype dtype;
	void *stream;
	void *workspace; /**< pack_workspace() bytes, NULL when that is 0 */
};

/**
 * A request's tail in one layer: the BF16 rows of its block that is not full, as
 * qmk_sequence takes them at recent_rows, and what is to be added to it.
 */
struct qmk_tail {
	uint16_t *rows;  /**< [64][d_c + d_r] */
	uint32_t filled; /**< rows it holds, at most 63 */
	uint32_t tokens; /**< rows to add, at most 64 */
	uint32_t row;    /**< index of the first of them in content and rope */
	uint32_t slot;   /**< where the page goes if the tail fills */
};

/**
 * Appends decode tokens to tails, and packs those that fill. A row is stored as BF16 less
 * the means; a tail that reaches 64 rows is packed, from those BF16 rows, into its slot's
 * page, and rows beyond begin the tail anew. The caller's next `filled` is
 * (filled + tokens) % 64.
 */
struct qmk_append_args {
	const struct qmk_layout *layout;
	const struct qmk_constants *constants; /**< as pack's */
	struct qmk_pool pool;
	uint32_t layer;
	uint32_t requests;
	/**
	 * [requests], tails apart from each other. Device memory on the CUDA table, which leaves
	 * a tail alone whose counts are out of range; the CPU table refuses the call.
	 */
	const struct qmk_tail *tails;
	const void *content;     /**< [rows][content_stride], cache coordinates before the mean */
	const void *rope;        /**< [rows][rope_stride]; rotated only for paper-c4r4 */
	uint64_t content_stride; /**< elements between rows */
	uint64_t rope_stride;
	enum qmk_dtype dtype;
	void *stream;
	void *workspace; /**< append_workspace() bytes, NULL when that is 0 */
};

/** Dequantise pages of one layer: codes to values, means added back, RoPE as stored. */
struct qmk_unpack_args {
	const struct qmk_layout *layout;
	const struct qmk_constants *constants;
	struct qmk_pool pool;
	uint32_t layer;
	uint32_t pages;
	const uint32_t *slots; /**< [N] */
	void *content;         /**< out [N*64][content_stride] */
	void *rope;            /**< out [N*64][rope_stride] */
	uint64_t content_stride;
	uint64_t rope_stride;
	enum qmk_dtype dtype;
	void *stream;
};

/**
 * One request of an attend batch. Its tokens, by position:
 *   [0, sink)            BF16 rows at sink_rows
 *   [sink, packed_end)   packed pages, block i of the table holds 64i … 64i+63
 *   [packed_end, total)  BF16 rows at recent_rows (the tail and any recent window)
 * BF16 rows are [d_c + d_r]: content in cache coordinates minus content_mean,
 * then the key before rotation minus rope_mean (paper-c4r4: after rotation).
 * The queries are its last `queries` tokens; query i sees positions
 * <= total - queries + i.
 *
 * A part of the keys: with key_end != 0 only positions [key_begin, key_end) are
 * attended (the causal rule holds as before), so that several calls share one
 * long sequence; their outputs and lse are joined by merge. Every other field
 * keeps its meaning. A query that sees no key of the part gets lse -INFINITY and
 * an output of zeros. Cut at multiples of 64: a part then costs no page twice.
 */
struct qmk_sequence {
	uint32_t total;
	uint32_t queries;   /**< >= 1 */
	uint32_t query_row; /**< first row of this request in the query and output arrays */
	uint32_t sink;
	uint32_t packed_end;
	uint32_t table_start;        /**< index of its first entry in block_table */
	const uint16_t *sink_rows;   /**< [sink][d_c + d_r] */
	const uint16_t *recent_rows; /**< [total - packed_end][d_c + d_r] */
	uint32_t key_begin;          /**< part of the keys, see above; 0 */
	uint32_t key_end;            /**< 0: all keys */
};

/** Absorbed MLA attention of one layer over a paged, variable-length batch. */
struct qmk_attend_args {
	const struct qmk_layout *layout;
	const struct qmk_constants *constants;
	const struct qmk_rope *rope;
	struct qmk_pool pool;
	uint32_t layer;
	uint32_t batch;
	uint32_t heads;
	uint32_t rows;        /**< query rows in all */
	uint32_t max_queries; /**< most queries of any sequence; sizes the CUDA plan, 0: rows */
	uint32_t max_total;   /**< most tokens of any sequence; sizes the CUDA plan */
	const struct qmk_sequence *sequences; /**< [batch]; read by `plan` on the CUDA table */
	const uint32_t *block_table;          /**< slots */
	const void *query_content; /**< [rows][H][d_c], cache coordinates (W_UK absorbed) */
	const void *query_rope;    /**< [rows][H][d_r], rotated by its own position */
	enum qmk_dtype query_dtype;
	/**
	 * Precision of the queries against packed content on Hopper: 0 the default, two
	 * int8 planes; 8 one plane, 7 to 13 % faster, 1e-2 relative error of the output (a tenth
	 * of what INT4 itself costs, but KL on mla-m rises by 81 %); 16 the generic fp16 kernel.
	 */
	uint32_t query_bits;
	float scale;  /**< tau, natural-base softmax scale */
	void *output; /**< [rows][H][d_c]; content_mean added */
	enum qmk_dtype output_dtype;
	float *lse; /**< [rows][H] base-2 log-sum-exp, or NULL */
	void *stream;
	void *workspace;
	size_t workspace_bytes;
};

/**
 * Joins partial softmax results of the same queries over disjoint keys. The output
 * may not overlap the parts.
 */
struct qmk_merge_args {
	uint32_t parts;
	uint32_t rows; /**< query rows times heads */
	uint32_t content_dim;
	const float *outputs; /**< [parts][rows][d_c] */
	const float *lse;     /**< [parts][rows], base 2; -INFINITY: nothing attended */
	float *output;        /**< [rows][d_c] */
	float *output_lse;    /**< [rows] or NULL */
	void *stream;
};

/** Page checksums of whole blocks (qmk_page_checksum). */
struct qmk_checksum_args {
	const struct qmk_layout *layout;
	struct qmk_pool pool;
	uint32_t blocks;
	const uint32_t *slots;
	uint64_t *checksums; /**< out [blocks][layers] */
	void *stream;
};

struct qmk_ops {
	const char *name; /**< "cpu", "cuda" */
	/** Bytes of scratch that pack needs; 0: none. */
	size_t (*pack_workspace)(const struct qmk_pack_args *args);
	/** QMLA_ERR_INVALID_ARGUMENT on a NULL or a shape out of range; QMLA_ERR_UNSUPPORTED where
	 * the table does not know a constant that is set. */
	qmla_status_t (*pack)(const struct qmk_pack_args *args);
	/** Pages back into rows of values. QMLA_ERR_INVALID_ARGUMENT as pack. */
	qmla_status_t (*unpack)(const struct qmk_unpack_args *args);
	/** Bytes of scratch for attend: depends on batch, heads, rows, max_queries and max_total
	 * only. */
	size_t (*attend_workspace)(const struct qmk_attend_args *args);
	/**
	 * Spreads the batch over the device: writes a work list into the workspace, for
	 * every attend of this step (all layers) with the same sequences and workspace.
	 * Must come before attend. Does nothing on the CPU table.
	 */
	qmla_status_t (*plan)(const struct qmk_attend_args *args);
	/**
	 * QMLA_ERR_INVALID_ARGUMENT also when the workspace is too small. On the CUDA table
	 * queries, output, pool, workspace and BF16 rows are 16-byte aligned.
	 */
	qmla_status_t (*attend)(const struct qmk_attend_args *args);
	/** Merges partial results by their log-sum-exp. QMLA_ERR_INVALID_ARGUMENT as pack. */
	qmla_status_t (*merge)(const struct qmk_merge_args *args);
	/** XXH64 of pages. QMLA_ERR_INVALID_ARGUMENT as pack. */
	qmla_status_t (*checksum)(const struct qmk_checksum_args *args);
	/** Bytes of scratch that append needs; 0: none. */
	size_t (*append_workspace)(const struct qmk_append_args *args);
	/** Decode tokens to BF16 tails, full tails to pages, in one launch. Statuses as pack. */
	qmla_status_t (*append)(const struct qmk_append_args *args);
};

extern const struct qmk_ops qmk_cpu_ops;

/** The CUDA table, or NULL when not built or no usable device is present. */
const struct qmk_ops *qmk_cuda_ops(void);

#endif /* QMK_OPS_H */
