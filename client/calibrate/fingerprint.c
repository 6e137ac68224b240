/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/fingerprint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/calibrate/disk.h"
#include "client/model/file.h"
#include "common/log.h"

#define COMPONENT    "calibrate"
#define CONFIG_LIMIT ((size_t)16 << 20)

static bool is_weights(const char *name)
{
	size_t length = strlen(name), suffix = strlen(".safetensors");

	return length > suffix && strcmp(name + length - suffix, ".safetensors") == 0;
}

static int keep_weights(const struct dirent *entry)
{
	return is_weights(entry->d_name);
}

static qmla_status_t add_file(const char *directory, const char *name, json_t *files)
{
	char *path = qmw_path_join(directory, name), text[96];
	struct stat info;
	qmla_status_t status = QMLA_OK;

	if (!path)
		return QMLA_ERR_NO_MEMORY;
	if (stat(path, &info) != 0) {
		status = qmw_disk_status(errno);
		qmc_error(COMPONENT, "%s cannot be opened: %s", path, strerror(errno));
	} else {
		snprintf(text, sizeof(text), "%" PRId64 " bytes, %" PRId64 ".%09ld",
			 (int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
		json_object_set_new(files, name, json_string(text));
	}
	free(path);
	return status;
}

static qmla_status_t add_weights(const char *model, json_t *files)
{
	struct dirent **entries;
	int count = scandir(model, &entries, keep_weights, alphasort);
	qmla_status_t status = QMLA_OK;

	if (count < 0) {
		status = qmw_disk_status(errno);
		qmc_error(COMPONENT, "%s cannot be read: %s", model, strerror(errno));
		return status;
	}
	for (int i = 0; i < count; i++) {
		if (status == QMLA_OK)
			status = add_file(model, entries[i]->d_name, files);
		free(entries[i]);
	}
	free(entries);
	return status;
}

static qmla_status_t add_config(const char *model, json_t *root)
{
	char *path = qmw_path_join(model, "config.json");
	qmla_status_t status = path ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	void *text = NULL;
	size_t bytes = 0;
	json_error_t error;
	json_t *config;

	if (status == QMLA_OK)
		status = qmw_file_read(path, CONFIG_LIMIT, &text, &bytes);
	if (status == QMLA_OK) {
		config = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
		if (config) {
			json_object_set_new(root, "config", config);
		} else {
			qmc_error(COMPONENT, "%s: line %d: %s", path, error.line, error.text);
			status = QMLA_ERR_FORMAT;
		}
	}
	free(text);
	free(path);
	return status;
}

qmla_status_t qmw_fingerprint_text(const char *model, const char *run, char **text)
{
	json_error_t error;
	json_t *root = json_object(), *files = json_object();
	json_t *options = json_loads(run, JSON_REJECT_DUPLICATES, &error);
	qmla_status_t status = root && files && options ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	char *dumped = NULL;

	json_object_set_new(root, "run", options);
	json_object_set_new(root, "weights", files);
	if (status == QMLA_OK)
		status = add_config(model, root);
	if (status == QMLA_OK)
		status = add_weights(model, files);
	if (status == QMLA_OK) {
		dumped =
			json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
		status = dumped ? QMLA_OK : QMLA_ERR_NO_MEMORY;
	}
	json_decref(root);
	if (status == QMLA_OK)
		*text = dumped;
	return status;
}
