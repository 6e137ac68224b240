/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/gpu.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Values of cuda.h, which the driver's ABI fixes. */
#define POINTER_CONTEXT        1
#define POINTER_MEMORY_TYPE    2
#define POINTER_SYNC_MEMOPS    6
#define POINTER_DEVICE_ORDINAL 9
#define MEMORY_TYPE_DEVICE     2
#define HANDLE_DMA_BUF_FD      1

static int (*get_attribute)(void *, int, uint64_t);
static int (*set_attribute)(const void *, int, uint64_t);
static int (*get_pci)(char *, int, int);
static int (*get_device)(int *, int);
static int (*get_range)(void *, uint64_t, size_t, int, unsigned long long); /* may be NULL */
static int (*memory_copy)(uint64_t, uint64_t, size_t);
static int (*set_context)(void *);

static const struct qmt_gpu_api *_Atomic chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool loaded;

static bool owns(const void *address, char pci[16])
{
	unsigned type = 0;
	int ordinal = 0, device = 0;

	if (get_attribute(&type, POINTER_MEMORY_TYPE, (uint64_t)(uintptr_t)address) != 0 ||
	    type != MEMORY_TYPE_DEVICE)
		return false;
	pci[0] = '\0';
	if (get_attribute(&ordinal, POINTER_DEVICE_ORDINAL, (uint64_t)(uintptr_t)address) == 0 &&
	    get_device(&device, ordinal) == 0 && get_pci(pci, 16, device) != 0)
		pci[0] = '\0';
	for (char *c = pci; *c; c++)
		*c = (char)tolower((unsigned char)*c); /* as sysfs has it */
	return true;
}

static int export_dmabuf(void *base, size_t bytes)
{
	int fd = -1;

	if (!get_range ||
	    get_range(&fd, (uint64_t)(uintptr_t)base, bytes, HANDLE_DMA_BUF_FD, 0) != 0)
		return -1;
	return fd;
}

static void order(void *base)
{
	unsigned on = 1;

	(void)set_attribute(&on, POINTER_SYNC_MEMOPS, (uint64_t)(uintptr_t)base);
}

/* A thread that has not used the GPU before takes on the context that the memory is of. */
static bool enter_context(const void *address)
{
	void *context = NULL;

	return get_attribute(&context, POINTER_CONTEXT, (uint64_t)(uintptr_t)address) == 0 &&
	       context && set_context(context) == 0;
}

static bool copy(void *to, const void *from, size_t bytes)
{
	uint64_t target = (uint64_t)(uintptr_t)to, source = (uint64_t)(uintptr_t)from;

	if (memory_copy(target, source, bytes) == 0)
		return true;
	return (enter_context(to) || enter_context(from)) &&
	       memory_copy(target, source, bytes) == 0;
}

static const struct qmt_gpu_api real = {
	.owns = owns,
	.export_dmabuf = export_dmabuf,
	.order = order,
	.copy = copy,
	.peermem = "/sys/module/nvidia_peermem/version",
};

static bool find(void *library, const char *name, void *slot)
{
	void *symbol = dlsym(library, name);

	memcpy(slot, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return;
	(void)find(library, "cuMemGetHandleForAddressRange", &get_range);
	loaded = find(library, "cuPointerGetAttribute", &get_attribute) &&
		 find(library, "cuPointerSetAttribute", &set_attribute) &&
		 find(library, "cuDeviceGetPCIBusId", &get_pci) &&
		 find(library, "cuDeviceGet", &get_device) &&
		 find(library, "cuMemcpy", &memory_copy) &&
		 find(library, "cuCtxSetCurrent", &set_context);
}

const struct qmt_gpu_api *qmt_gpu_api(void)
{
	/* Pairs with the release below. */
	const struct qmt_gpu_api *api = atomic_load_explicit(&chosen, memory_order_acquire);

	if (api)
		return api;
	pthread_once(&once, load);
	return loaded ? &real : NULL;
}

void qmt_gpu_api_use(const struct qmt_gpu_api *api)
{
	atomic_store_explicit(&chosen, api, memory_order_release);
}
