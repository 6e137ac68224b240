/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The work list of one decode step. An entity is a group of query rows of one
 * sequence; its packed tiles (64 tokens each) are dealt to `parts` CTAs in equal
 * shares, its BF16 rows (sink, recent) are one more item. Every item leaves a
 * partial result, a split; an entity's splits are contiguous, which is what the
 * combine kernel needs.
 *
 * All of it lives in the caller's workspace, written by plan_kernel from the
 * sequences in device memory: a captured graph replays with new lengths.
 */
#ifndef QMK_CUDA_PLAN_CUH
#define QMK_CUDA_PLAN_CUH

#include "kernels/cuda/device.cuh"

#define QMK_PLAN_PARTS_MAX 1024u
#define QMK_TILE           64u /* tokens of one tile: a page */

/** Tiles [tile_begin, tile_end) of an entity, counted in pages of its sequence. */
struct qmk_item {
	uint32_t entity, tile_begin, tile_end, split; /* split: the first of `lanes` */
};

/** Where an entity's partial results are. */
struct qmk_entity {
	uint32_t sequence, group, first_split, splits;
};

/** Fixed by the host from batch, heads and bounds: the same for plan and attend. */
struct qmk_plan_shape {
	uint32_t rows;     /**< query rows of a group: 16, 32 or 64 */
	uint32_t groups;   /**< most groups of a sequence */
	uint32_t entities; /**< batch * groups */
	uint32_t parts;    /**< CTAs that share the packed tiles */
	uint32_t lanes;    /**< partial results that one packed item leaves */
	uint32_t splits;   /**< most partial results */
	uint32_t pages;    /**< most pages of a sequence */
};

/** Device pointers into the workspace. */
struct qmk_plan {
	qmk_item *items;       /**< [entities + parts] packed work, in order of part */
	uint32_t *part_begin;  /**< [parts + 1] into items */
	uint32_t *bf16_split;  /**< [entities]: split of the BF16 item, UINT32_MAX: none */
	qmk_entity *entities;  /**< [entities] */
	uint4 *page_turns;     /**< Hopper: [pages][4 couples]{cos, sin}, see plan.cu */
	uint4 *token_turns;    /**< Hopper: [4][128] */
	uint8_t *query_image;  /**< Hopper: [entities], queries as shared memory holds them */
	float2 *query_factors; /**< Hopper: [entities][rows], score = factor * sum + offset */
	float *partial;        /**< [splits][rows][d_c] */
	float *partial_lse;    /**< [splits][rows], base 2 */
};

/** QMLA_ERR_INVALID_ARGUMENT when the arguments cannot be planned. */
qmla_status_t qmk_plan_shape_of(const struct qmk_attend_args *args, struct qmk_plan_shape *shape);

/** Bytes of workspace; with @p base not NULL also the pointers. */
size_t qmk_plan_layout(const struct qmk_attend_args *args, const struct qmk_plan_shape *shape,
		       void *base, struct qmk_plan *plan);

#endif /* QMK_CUDA_PLAN_CUH */
