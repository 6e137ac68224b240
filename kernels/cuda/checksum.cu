/* SPDX-License-Identifier: Apache-2.0 */
/* Page checksums (kernels/block.h, qmk_page_checksum): one CTA a page, one thread a chunk. */
#include "kernels/cuda/checksum.cuh"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/xxh64.cuh"

#define CHUNK_BYTES 128u
#define THREADS     160u
#define MAX_CHUNKS  1024u /* 128 KiB a page: d_c 1024 at 4 bits is 36 KiB */

struct checksum_params {
	qmk_layout layout;
	qmk_pool pool;
	const uint32_t *slots;
	uint64_t *checksums;
};

static __global__ void __launch_bounds__(THREADS)
	checksum_kernel(const __grid_constant__ checksum_params params)
{
	const qmk_layout &layout = params.layout;
	static __shared__ uint64_t chunk_hash[MAX_CHUNKS];
	const uint32_t layer = blockIdx.x;
	const uint32_t block = blockIdx.y;
	const uint32_t chunks = layout.page_bytes / CHUNK_BYTES;
	const uint8_t *page = qmk_page(params.pool, layout, params.slots[block], layer);

	for (uint32_t i = threadIdx.x; i < chunks; i += THREADS) {
		uint64_t words[CHUNK_BYTES / 8];
		const ulonglong2 *source = (const ulonglong2 *)(page + (uint64_t)i * CHUNK_BYTES);

#pragma unroll
		for (int j = 0; j < (int)(CHUNK_BYTES / 16); j++) {
			ulonglong2 pair = source[j];

			words[2 * j] = pair.x;
			words[2 * j + 1] = pair.y;
		}
		chunk_hash[i] = qmk_xxh64(words, CHUNK_BYTES / 8, i);
	}
	__syncthreads();
	if (threadIdx.x == 0)
		params.checksums[(uint64_t)block * layout.layers + layer] =
			qmk_xxh64(chunk_hash, chunks, 0);
}

qmla_status_t qmk_cuda_checksum(const struct qmk_checksum_args *args)
{
	const struct qmk_layout *layout = args->layout;

	if (!layout || !args->slots || !args->checksums || !args->pool.base ||
	    layout->page_bytes / CHUNK_BYTES > MAX_CHUNKS)
		return QMLA_ERR_INVALID_ARGUMENT;
	if (args->blocks == 0)
		return QMLA_OK;
	/* blockIdx.y ends at 65,535: longer lists go in slices. */
	for (uint32_t first = 0; first < args->blocks; first += 65535) {
		const uint32_t count = args->blocks - first < 65535 ? args->blocks - first : 65535;
		const checksum_params params = {*layout, args->pool, args->slots + first,
						args->checksums + (uint64_t)first * layout->layers};
		const qmla_status_t status =
			qmk_launch(checksum_kernel, dim3(layout->layers, count), THREADS, 0, false,
				   (cudaStream_t)args->stream, params);

		if (status != QMLA_OK)
			return status;
	}
	return QMLA_OK;
}
