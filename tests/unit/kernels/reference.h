/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The page format and the attention in float64, written from docs/format.md and
 * the formulas, without the library's code: what the kernels are held to. Also
 * random numbers with a seed, and memory with guard bytes around it.
 */
#ifndef QMLA_TESTS_KERNELS_REFERENCE_H
#define QMLA_TESTS_KERNELS_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

/** The table under test; ref_run_variants sets it. */
extern const struct qmk_ops *ref_ops;

/**
 * Calls @p run for the CPU table and for each of its variants that this processor
 * runs, with the name to report; returns the sum of what it returned.
 */
int ref_run_variants(int (*run)(const char *name));

/* Random numbers: splitmix64. */
struct ref_random {
	uint64_t state;
};

uint64_t ref_random_next(struct ref_random *random);
uint32_t ref_random_below(struct ref_random *random, uint32_t limit);
double ref_random_normal(struct ref_random *random);

/** Memory filled with @p fill between guard zones; aligned to 128. */
void *ref_alloc(size_t bytes, uint8_t fill);
/** Fails the test when a guard byte changed, then frees. */
void ref_free(void *memory);

double ref_half(uint16_t bits);     /**< binary16 to double */
double ref_bfloat(uint16_t bits);   /**< bfloat16 to double */
uint16_t ref_to_half(double value); /**< nearest, ties to even */
uint16_t ref_to_bfloat(double value);

/** Code of coordinate @p k of token @p t in a plane of codes (row and chunk rules of the format).
 */
unsigned ref_code(const uint8_t *plane, uint32_t dim, uint32_t bits, uint32_t t, uint32_t k);

/** Values of one token of a page as stored, without means. */
void ref_page_token(const struct qmk_layout *layout, const uint8_t *page, uint32_t t,
		    double *content, double *rope);

/** Fills a page with valid random codes and scales. */
void ref_page_random(const struct qmk_layout *layout, struct ref_random *random, uint8_t *page);

/**
 * Attention of every query of args' batch in float64, straight from the
 * definition. @p output [rows][H][d_c], @p lse [rows][H].
 */
void ref_attend(const struct qmk_attend_args *args, double *output, double *lse);

#endif /* QMLA_TESTS_KERNELS_REFERENCE_H */
