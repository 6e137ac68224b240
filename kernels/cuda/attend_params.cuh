/* SPDX-License-Identifier: Apache-2.0 */
/** @file What the attention kernels take by value, and the launchers of each. */
#ifndef QMK_CUDA_ATTEND_PARAMS_CUH
#define QMK_CUDA_ATTEND_PARAMS_CUH

#include "kernels/cuda/plan.cuh"

/** The caller's arguments with the structures they point to copied in. */
struct attend_params {
	qmk_attend_args
		args; /* args.layout, args.rope and args.constants are host pointers: not used */
	qmk_layout layout;
	qmk_rope rope;
	const float *rope_mean;
	const float *content_mean;
	bool whole; /* an entity's only split is written out, not joined */
	qmk_plan_shape shape;
	qmk_plan plan;
};

/** Tokens that query row @p row of a sequence may see: itself and what is before it. */
static __device__ __forceinline__ uint32_t attend_visible(const qmk_sequence &s, uint32_t row,
							  uint32_t heads)
{
	return s.total - s.queries + row / heads + 1;
}

enum attend_generic_part { ATTEND_PACKED, ATTEND_BF16 };

/**
 * Any device: the packed tiles, or the BF16 rows. The latter come after the kernel of the
 * packed tiles, whichever it is, and run beside it where there is room.
 */
qmla_status_t attend_generic_launch(const attend_params &params, attend_generic_part part,
				    cudaStream_t stream);

/** sm_90: stages the queries, then the packed tiles. */
qmla_status_t attend_hopper_launch(const attend_params &params, cudaStream_t stream);

/** sm_90: BF16 pages instead of packed ones, kernels/cuda/baseline.h. */
qmla_status_t attend_baseline_launch(const attend_params &params, cudaStream_t stream);

/** True when the Hopper kernel takes this geometry on this device. */
bool attend_hopper_fits(const struct qmk_attend_args *args);

/** Its row group, partial results of one item, and bytes of a staged query row. */
uint32_t attend_hopper_rows(uint32_t rows);
uint32_t attend_hopper_lanes(uint32_t group_rows);
uint32_t attend_hopper_image_bytes(const struct qmk_attend_args *args);

#endif /* QMK_CUDA_ATTEND_PARAMS_CUH */
