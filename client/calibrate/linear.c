/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/linear.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* LAPACK's Fortran names; Debian's OpenBLAS brings them, but no header for them. */
extern void dgetrf_(const blasint *m, const blasint *n, double *a, const blasint *lda,
		    blasint *pivots, blasint *info);
extern void dgetrs_(const char *trans, const blasint *n, const blasint *nrhs, const double *a,
		    const blasint *lda, const blasint *pivots, double *b, const blasint *ldb,
		    blasint *info, size_t trans_length);
extern void dsyevd_(const char *jobz, const char *uplo, const blasint *n, double *a,
		    const blasint *lda, double *w, double *work, const blasint *lwork,
		    blasint *iwork, const blasint *liwork, blasint *info, size_t jobz_length,
		    size_t uplo_length);

struct qmw_lu {
	blasint n;
	blasint *pivots;
	double matrix[];
};

qmla_status_t qmw_lu_create(const double *matrix, uint32_t n, struct qmw_lu **lu)
{
	size_t count = (size_t)n * n;
	struct qmw_lu *self = malloc(sizeof(*self) + count * sizeof(double));
	blasint info = 0;

	if (!self)
		return QMLA_ERR_NO_MEMORY;
	self->n = (blasint)n;
	self->pivots = calloc(n, sizeof(*self->pivots));
	if (!self->pivots) {
		free(self);
		return QMLA_ERR_NO_MEMORY;
	}
	/* Read by columns, a row-major matrix is its transpose; solve knows. */
	memcpy(self->matrix, matrix, count * sizeof(double));
	dgetrf_(&self->n, &self->n, self->matrix, &self->n, self->pivots, &info);
	if (info != 0) {
		qmw_lu_destroy(self);
		return QMLA_ERR_INTERNAL;
	}
	*lu = self;
	return QMLA_OK;
}

void qmw_lu_destroy(struct qmw_lu *lu)
{
	if (lu)
		free(lu->pivots);
	free(lu);
}

void qmw_lu_solve(const struct qmw_lu *lu, bool transposed, uint32_t columns, double *b)
{
	blasint count = (blasint)columns, info = 0;

	dgetrs_(transposed ? "N" : "T", &lu->n, &count, lu->matrix, &lu->n, lu->pivots, b, &lu->n,
		&info, 1);
}

static void fix_sign(double *vector, uint32_t n)
{
	uint32_t at = 0;

	for (uint32_t i = 1; i < n; i++)
		if (fabs(vector[i]) > fabs(vector[at]))
			at = i;
	if (vector[at] < 0)
		for (uint32_t i = 0; i < n; i++)
			vector[i] = -vector[i];
}

qmla_status_t qmw_symmetric_eigen(const double *matrix, uint32_t n, double *values, double *vectors)
{
	blasint size = (blasint)n, info = 0, lwork = -1, liwork = -1, wanted_int = 0;
	double wanted = 0, *work;
	blasint *iwork;

	memcpy(vectors, matrix, (size_t)n * n * sizeof(double));
	dsyevd_("V", "U", &size, vectors, &size, values, &wanted, &lwork, &wanted_int, &liwork,
		&info, 1, 1);
	lwork = (blasint)wanted;
	liwork = wanted_int;
	work = malloc((size_t)lwork * sizeof(*work));
	iwork = malloc((size_t)liwork * sizeof(*iwork));
	if (!work || !iwork) {
		free(work);
		free(iwork);
		return QMLA_ERR_NO_MEMORY;
	}
	dsyevd_("V", "U", &size, vectors, &size, values, work, &lwork, iwork, &liwork, &info, 1, 1);
	free(work);
	free(iwork);
	for (uint32_t i = 0; info == 0 && i < n; i++)
		fix_sign(vectors + (size_t)i * n, n);
	return info == 0 ? QMLA_OK : QMLA_ERR_INTERNAL;
}

void qmw_square_product(uint32_t n, bool transpose_a, const double *a, bool transpose_b,
			const double *b, double *c)
{
	blasint size = (blasint)n;

	cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
		    transpose_b ? CblasTrans : CblasNoTrans, size, size, size, 1, a, size, b, size,
		    0, c, size);
}

double qmw_orthogonality(const double *matrix, uint32_t n)
{
	double *gram = malloc((size_t)n * n * sizeof(*gram));
	double worst = 0;

	if (!gram)
		return -1;
	qmw_square_product(n, true, matrix, false, matrix, gram);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < n; j++)
			worst = fmax(worst, fabs(gram[(size_t)i * n + j] - (i == j)));
	free(gram);
	return worst;
}

/* Row k of the orthonormal cosine basis (DCT-II) of m points at point i. */
static double cosine(uint32_t m, uint32_t k, uint32_t i)
{
	double norm = sqrt((k == 0 ? 1.0 : 2.0) / m);

	return norm * cos(acos(-1.0) * (i + 0.5) * k / m);
}

void qmw_spreading_rotation(uint32_t n, double *matrix)
{
	uint32_t power = n & (0 - n), rest = n / power;
	double unit = 1 / sqrt((double)power);

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < n; j++) {
			uint32_t bits = (i % power) & (j % power);
			double sign = __builtin_popcount(bits) % 2 ? -unit : unit;

			matrix[(size_t)i * n + j] =
				rest == 1 ? sign : sign * cosine(rest, i / power, j / power);
		}
	}
}
