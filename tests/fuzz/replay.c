/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feeds the files of a folder (or files) to a fuzz target without libFuzzer:
 *   replay FOLDER|FILE …
 * so that what a fuzzer once found is a test in every build.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	struct stat info;
	uint8_t *data;
	size_t size;
	int failed;

	if (!file || fstat(fileno(file), &info)) {
		perror(path);
		return 1;
	}
	/* The exact size, so that ASan sees a read past the end. */
	data = malloc(info.st_size ? (size_t)info.st_size : 1);
	size = data ? fread(data, 1, (size_t)info.st_size, file) : 0;
	failed = !data || size != (size_t)info.st_size;
	fclose(file);
	if (!failed)
		LLVMFuzzerTestOneInput(data, size);
	else
		fprintf(stderr, "%s: cannot be read\n", path);
	free(data);
	return failed;
}

static int replay_folder(const char *path, unsigned *count)
{
	struct dirent **entries;
	int failed = 0;
	int n = scandir(path, &entries, NULL, alphasort);

	if (n < 0) {
		perror(path);
		return 1;
	}
	for (int i = 0; i < n; i++) {
		char name[4096];

		if (entries[i]->d_name[0] != '.') {
			snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
			failed |= replay_file(name);
			++*count;
		}
		free(entries[i]);
	}
	free(entries);
	return failed;
}

int main(int argc, char **argv)
{
	unsigned count = 0;
	int failed = 0;

	for (int i = 1; i < argc; i++) {
		struct stat info;

		if (stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode)) {
			failed |= replay_folder(argv[i], &count);
		} else {
			failed |= replay_file(argv[i]);
			count++;
		}
	}
	printf("%u inputs replayed\n", count);
	return failed || !count;
}
