/* SPDX-License-Identifier: Apache-2.0 */
/** @file Device memory for the GPU tests: every failure fails the test. */
#ifndef TESTS_GPU_DEVICE_MEMORY_H
#define TESTS_GPU_DEVICE_MEMORY_H

#include <stddef.h>

/** Allocates @p bytes filled with 0xa5. Freed by device_release_all. */
void *device_alloc(size_t bytes);
/** Allocates and copies @p host there; NULL for a NULL @p host. */
void *device_copy(const void *host, size_t bytes);
void device_read(void *host, const void *device, size_t bytes);
void device_write(void *device, const void *host, size_t bytes);
/** Waits for the device and fails the test on any error it met. */
void device_finish(void);
void device_release_all(void);

/** Begins to capture a graph; returns the stream to launch on. */
void *device_graph_begin(void);
/** Ends it, runs the graph @p times times, waits, and destroys it and @p stream. */
void device_graph_replay(void *stream, int times);

#endif /* TESTS_GPU_DEVICE_MEMORY_H */
