/* SPDX-License-Identifier: Apache-2.0 */
/* How near a device is to memory, by what sysfs says. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/verbs/device.h"

#define UNKNOWN    1 /* between the same node and another */
#define OTHER_NODE 2
#define NO_PATH    100 /* longer than any path of PCIe bridges */

static int read_numa_node(const char *sysfs, const char *device)
{
	char path[PATH_MAX];
	FILE *file;
	int node = QMT_NUMA_UNKNOWN;

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/device/numa_node", sysfs, device);
	file = fopen(path, "re");
	if (!file)
		return QMT_NUMA_UNKNOWN;
	if (fscanf(file, "%d", &node) != 1)
		node = QMT_NUMA_UNKNOWN;
	fclose(file);
	return node;
}

static int node_distance(const char *sysfs, const char *device, int wanted)
{
	int node = read_numa_node(sysfs, device);

	if (node == QMT_NUMA_UNKNOWN || wanted == QMT_NUMA_UNKNOWN)
		return UNKNOWN;
	return node == wanted ? 0 : OTHER_NODE;
}

/* Components of @path behind the part that it has in common with the other. */
static int components(const char *path)
{
	int count = 0;

	for (; *path; path++)
		count += *path == '/' && path[1];
	return count;
}

/* Bridges between two devices: the fewer components of the two paths differ, the nearer. */
static int path_distance(const char *sysfs, const char *device, const char *pci)
{
	char link[PATH_MAX], nic[PATH_MAX], gpu[PATH_MAX];
	size_t common = 0;

	snprintf(link, sizeof(link), "%s/class/infiniband/%s/device", sysfs, device);
	if (!realpath(link, nic))
		return NO_PATH;
	snprintf(link, sizeof(link), "%s/bus/pci/devices/%s", sysfs, pci);
	if (!realpath(link, gpu))
		return NO_PATH;
	for (size_t i = 0; nic[i] && nic[i] == gpu[i]; i++) {
		if (nic[i] == '/')
			common = i;
	}
	return components(nic + common) + components(gpu + common);
}

int qmt_device_distance(const char *sysfs, const char *device, const struct qmt_place *place)
{
	if (place->pci_device)
		return path_distance(sysfs, device, place->pci_device);
	return node_distance(sysfs, device, place->numa_node);
}
