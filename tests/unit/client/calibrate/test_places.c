/* SPDX-License-Identifier: Apache-2.0 */
/* What a calibration leaves on the disk: rows, learned layers, the folder; and the corpus. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/calibrate/corpus.h"
#include "client/calibrate/disk.h"
#include "client/calibrate/layer_state.h"
#include "client/calibrate/row_file.h"
#include "client/calibrate/workplace.h"
#include "client/model/file.h"
#include "tests/unit/client/calibrate/near.h"
#include "tests/unit/client/model/fixture.h"

#define MODEL FIXTURE_GOLDEN "v3-bf16-dc512"

static const uint8_t tag[QMC_SHA256_BYTES] = {1, 2, 3}, other[QMC_SHA256_BYTES] = {3, 2, 1};

static void path_of(char path[600], const char *root, const char *name)
{
	assert_in_range(snprintf(path, 600, "%s/%s", root, name), 1, 599);
}

static void put(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void flip_byte(const char *path, long offset)
{
	FILE *file = fopen(path, "r+");
	int byte;

	assert_non_null(file);
	fseek(file, offset, SEEK_SET);
	byte = fgetc(file);
	fseek(file, offset, SEEK_SET);
	fputc(byte ^ 1, file);
	fclose(file);
}

static void test_rows(void **state)
{
	char root[256], path[600], temporary[600];
	float values[3] = {1, 2, 3}, back[3] = {0};
	struct qmw_row_file *file;

	(void)state;
	fixture_make(root);
	path_of(path, root, "rows");
	path_of(temporary, root, "rows.tmp");
	assert_int_equal(qmw_row_file_open(path, tag, 2, 3, &file), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmw_row_file_create(path, tag, 2, 3, &file), QMLA_OK);
	assert_int_equal(qmw_row_file_write(file, 1, values), QMLA_OK);
	values[0] = 9;
	assert_int_equal(qmw_row_file_write(file, 0, values), QMLA_OK);
	assert_int_equal(qmw_row_file_read(file, 1, back), QMLA_OK);
	assert_near(back[0], 1, 0);
	assert_false(qmw_file_exists(path));
	assert_int_equal(qmw_row_file_finish(file), QMLA_OK);
	qmw_row_file_close(file);
	assert_int_equal(qmw_row_file_open(path, tag, 2, 3, &file), QMLA_OK);
	assert_int_equal(qmw_row_file_read(file, 0, back), QMLA_OK);
	assert_near(back[0], 9, 0);
	qmw_row_file_close(file);
	/* Another run's, another shape, cut short. */
	assert_int_equal(qmw_row_file_open(path, other, 2, 3, &file), QMLA_ERR_CORRUPT);
	assert_int_equal(qmw_row_file_open(path, tag, 3, 2, &file), QMLA_ERR_CORRUPT);
	assert_int_equal(truncate(path, 100), 0);
	assert_int_equal(qmw_row_file_open(path, tag, 2, 3, &file), QMLA_ERR_CORRUPT);
	/* Not finished: nothing is left. */
	assert_int_equal(qmw_row_file_create(path, tag, 2, 3, &file), QMLA_OK);
	assert_true(qmw_file_exists(temporary));
	qmw_row_file_close(file);
	assert_false(qmw_file_exists(temporary));
	fixture_remove(root);
}

/* A full disk is told as such. */
static void test_full_disk(void **state)
{
	int fd = open("/dev/full", O_WRONLY);
	char byte = 0;

	(void)state;
	if (fd < 0)
		skip();
	assert_int_equal(qmw_disk_write(fd, &byte, 1, 0, "/dev/full"), QMLA_ERR_NO_SPACE);
	close(fd);
	assert_int_equal(qmw_disk_status(ENOSPC), QMLA_ERR_NO_SPACE);
	assert_int_equal(qmw_disk_status(EROFS), QMLA_ERR_NO_SPACE);
	assert_int_equal(qmw_disk_status(EACCES), QMLA_ERR_PERMISSION);
	assert_int_equal(qmw_disk_save("/no/such/folder/x", "x", 1), QMLA_ERR_NOT_FOUND);
}

static void test_layer_state(void **state)
{
	double rotation[16], scale[4] = {1, 2, 3, 4}, cross[8];
	struct qmw_transform t = {.content_dim = 4, .rope_dim = 2};
	struct qmw_transform back;
	struct qmw_layer_figures figures, read;
	char root[256], path[600];

	(void)state;
	memset(&figures, 0, sizeof(figures));
	figures.after.both = 0.25;
	for (int i = 0; i < 16; i++)
		rotation[i] = i * 0.1;
	for (int i = 0; i < 8; i++)
		cross[i] = -i;
	t.rotation = rotation;
	t.content_scale = scale;
	t.cross_feedback = cross;
	fixture_make(root);
	path_of(path, root, "layer");
	assert_int_equal(qmw_layer_state_load(path, tag, &back, &read), QMLA_ERR_NOT_FOUND);
	assert_int_equal(qmw_layer_state_save(path, tag, &t, &figures), QMLA_OK);
	assert_int_equal(qmw_layer_state_load(path, tag, &back, &read), QMLA_OK);
	assert_near(read.after.both, 0.25, 0);
	assert_memory_equal(back.rotation, rotation, sizeof(rotation));
	assert_memory_equal(back.content_scale, scale, sizeof(scale));
	assert_memory_equal(back.cross_feedback, cross, sizeof(cross));
	assert_null(back.rope_angle);
	assert_null(back.content_feedback);
	qmw_transform_free(&back);
	assert_int_equal(qmw_layer_state_load(path, other, &back, &read), QMLA_ERR_CORRUPT);
	flip_byte(path, 300);
	assert_int_equal(qmw_layer_state_load(path, tag, &back, &read), QMLA_ERR_CORRUPT);
	assert_int_equal(truncate(path, 60), 0);
	assert_int_equal(qmw_layer_state_load(path, tag, &back, &read), QMLA_ERR_CORRUPT);
	fixture_remove(root);
}

static void test_corpus(void **state)
{
	static uint32_t tokens[1000];
	struct qmw_corpus corpus;
	uint32_t used[100] = {0};

	(void)state;
	for (uint32_t i = 0; i < 1000; i++)
		tokens[i] = i;
	/* 100 pieces of 10: eight and two of them, none twice. */
	assert_int_equal(qmw_corpus_init(tokens, 1000, 10, 8, 2, &corpus), QMLA_OK);
	assert_int_equal(corpus.train, 8);
	assert_int_equal(corpus.held_out, 2);
	for (uint32_t i = 0; i < 10; i++) {
		uint32_t first = qmw_corpus_sequence(&corpus, i)[0];

		assert_int_equal(first % 10, 0);
		assert_int_equal(used[first / 10]++, 0);
	}
	/* Spread: the last tenth of the text is used too. */
	assert_true(used[90]);
	qmw_corpus_fini(&corpus);
	/* Half as much text as wanted: half of each. */
	assert_int_equal(qmw_corpus_init(tokens, 1000, 10, 160, 40, &corpus), QMLA_OK);
	assert_int_equal(corpus.train, 80);
	assert_int_equal(corpus.held_out, 20);
	qmw_corpus_fini(&corpus);
	assert_int_equal(qmw_corpus_init(tokens, 25, 10, 16, 4, &corpus), QMLA_OK);
	assert_int_equal(corpus.train, 1);
	assert_int_equal(corpus.held_out, 1);
	qmw_corpus_fini(&corpus);
	assert_int_equal(qmw_corpus_init(tokens, 19, 10, 16, 4, &corpus),
			 QMLA_ERR_INVALID_ARGUMENT);
	assert_int_equal(qmw_corpus_init(tokens, 1000, 10, 16, 0, &corpus),
			 QMLA_ERR_INVALID_ARGUMENT);
}

/* What a calibration writes beside its weights, and what lies beside weights of others. */
#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ABOUT(words)                                                                               \
	"{" words ", \"content_rotation\": \"identity\", \"model_sha256\": \"" DIGEST "\"}"
#define FUSED(recipe)                                                                              \
	ABOUT("\"version\": 2, \"recipe\": \"" recipe                                              \
	      "\", \"method\": \"default\", \"cache\": \"c4r4\", \"quantiser\": \"default\", "     \
	      "\"content_scale\": \"one\", \"source_sha256\": \"" DIGEST "\"")
#define BESIDE ABOUT("\"version\": 1, \"recipe\": \"means\"")

struct place {
	char root[256], output[600], folder[620];
	struct qmw_workplace_options options;
};

static void place_make(struct place *p)
{
	fixture_make(p->root);
	path_of(p->output, p->root, "out");
	snprintf(p->folder, sizeof(p->folder), "%s.calibrate", p->output);
	p->options = (struct qmw_workplace_options){
		.model = MODEL, .output = p->output, .run = "{\"seed\":1}"};
}

static void place_remove(struct place *p)
{
	assert_int_equal(qmw_disk_remove(p->folder), QMLA_OK);
	assert_int_equal(qmw_disk_remove(p->output), QMLA_OK);
	fixture_remove(p->root);
}

static qmla_status_t open_close(const struct place *p, bool *resumed)
{
	struct qmw_workplace *workplace;
	qmla_status_t status = qmw_workplace_open(&p->options, &workplace);

	if (status != QMLA_OK)
		return status;
	*resumed = qmw_workplace_resumed(workplace);
	qmw_workplace_close(workplace);
	return QMLA_OK;
}

static void test_workplace_resumes(void **state)
{
	struct qmw_workplace *one, *two;
	uint8_t tags[3][QMC_SHA256_BYTES];
	struct place p;
	bool resumed;

	(void)state;
	place_make(&p);
	assert_int_equal(qmw_workplace_open(&p.options, &one), QMLA_OK);
	assert_false(qmw_workplace_resumed(one));
	/* One process at a time. */
	assert_int_equal(qmw_workplace_open(&p.options, &two), QMLA_ERR_BUSY);
	assert_int_equal(qmw_workplace_tag(one, "a", 1, tags[0]), QMLA_OK);
	assert_int_equal(qmw_workplace_tag(one, "a", 2, tags[1]), QMLA_OK);
	assert_int_equal(qmw_workplace_tag(one, "b", 1, tags[2]), QMLA_OK);
	assert_memory_not_equal(tags[0], tags[1], QMC_SHA256_BYTES);
	assert_memory_not_equal(tags[0], tags[2], QMC_SHA256_BYTES);
	assert_int_equal(qmw_workplace_room(one, 1), QMLA_OK);
	assert_int_equal(qmw_workplace_room(one, UINT64_MAX / 2), QMLA_ERR_NO_SPACE);
	qmw_workplace_close(one);
	assert_int_equal(open_close(&p, &resumed), QMLA_OK);
	assert_true(resumed);
	/* Other options: not without force, and then from the start. */
	p.options.run = "{\"seed\":2}";
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_ALREADY_EXISTS);
	p.options.force = true;
	assert_int_equal(open_close(&p, &resumed), QMLA_OK);
	assert_false(resumed);
	place_remove(&p);
}

static void test_workplace_refuses(void **state)
{
	char inside[600];
	struct place p;
	bool resumed;

	(void)state;
	place_make(&p);
	p.options.output = MODEL;
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_INVALID_ARGUMENT);
	p.options.output = p.output;
	/* Something that is no calibration is never touched, a calibration with force only. */
	assert_int_equal(mkdir(p.output, 0777), 0);
	path_of(inside, p.output, "notes");
	put(inside, "mine");
	p.options.force = true;
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_ALREADY_EXISTS);
	/* Constants beside somebody's weights are no licence to remove the weights. */
	path_of(inside, p.output, "quantmla.json");
	put(inside, BESIDE);
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_ALREADY_EXISTS);
	put(inside, "{}");
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_ALREADY_EXISTS);
	put(inside, FUSED("x"));
	p.options.force = false;
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_ALREADY_EXISTS);
	p.options.force = true;
	assert_int_equal(open_close(&p, &resumed), QMLA_OK);
	assert_int_equal(qmw_disk_remove(p.output), QMLA_OK);
	assert_int_equal(qmw_disk_remove(p.folder), QMLA_OK);
	/* A folder of that name that is not ours. */
	assert_int_equal(mkdir(p.folder, 0777), 0);
	path_of(inside, p.folder, "notes");
	put(inside, "mine");
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_ALREADY_EXISTS);
	assert_true(qmw_file_exists(inside));
	p.options.output = "/no/such/folder/out";
	assert_int_equal(open_close(&p, &resumed), QMLA_ERR_NOT_FOUND);
	place_remove(&p);
}

static void test_workplace_delivers(void **state)
{
	struct qmw_workplace *workplace;
	char inside[600], *fused;
	size_t length;
	struct place p;

	(void)state;
	place_make(&p);
	assert_int_equal(mkdir(p.output, 0777), 0);
	path_of(inside, p.output, "quantmla.json");
	put(inside, FUSED("old"));
	p.options.force = true;
	assert_int_equal(qmw_workplace_open(&p.options, &workplace), QMLA_OK);
	fused = qmw_workplace_path(workplace, "fused", 0);
	assert_int_equal(mkdir(fused, 0777), 0);
	path_of(inside, fused, "quantmla.json");
	put(inside, FUSED("new"));
	/* What a run leaves that was killed while it put its own in place. */
	path_of(inside, p.folder, "replaced");
	assert_int_equal(mkdir(inside, 0777), 0);
	path_of(inside, p.folder, "replaced/quantmla.json");
	put(inside, "older");
	assert_int_equal(qmw_workplace_deliver(workplace, "fused"), QMLA_OK);
	qmw_workplace_close(workplace);
	free(fused);
	assert_false(qmw_file_exists(p.folder));
	fused = fixture_read(p.output, "quantmla.json", &length);
	assert_string_equal(fused, FUSED("new"));
	free(fused);
	place_remove(&p);
}

/* Names in the order in which they went from the watched directory. */
static uint32_t read_deleted(int watch, char names[16][64])
{
	union {
		struct inotify_event event;
		char bytes[8192];
	} buffer;
	ssize_t got = read(watch, &buffer, sizeof(buffer));
	uint32_t count = 0;

	assert_true(got > 0);
	for (ssize_t at = 0; at < got && count < 16;) {
		const struct inotify_event *event = (const void *)(buffer.bytes + at);

		if (event->len > 0)
			snprintf(names[count++], 64, "%.63s", event->name);
		at += (ssize_t)sizeof(*event) + event->len;
	}
	return count;
}

static void put_work(const struct place *p)
{
	static const char *const names[] = {"layer-000.state", "run.json.tmp", "zz", "aa",
					    "output.rows"};
	char inside[600];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		path_of(inside, p->folder, names[i]);
		put(inside, "x");
	}
}

/* run.json says whose the folder is for as long as anything of the run lies in it. */
static void test_workplace_removed_in_order(void **state)
{
	int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	char names[16][64];
	uint32_t count;
	struct place p;
	bool resumed;

	(void)state;
	if (watch < 0)
		skip();
	place_make(&p);
	assert_int_equal(open_close(&p, &resumed), QMLA_OK);
	put_work(&p);
	assert_true(inotify_add_watch(watch, p.folder, IN_DELETE) >= 0);
	p.options.run = "{\"seed\":2}";
	p.options.force = true;
	assert_int_equal(open_close(&p, &resumed), QMLA_OK);
	count = read_deleted(watch, names);
	close(watch);
	assert_int_equal(count, 7);
	assert_string_equal(names[5], "run.json");
	assert_string_equal(names[6], "lock");
	place_remove(&p);
}

static void test_workplace_sweeps(void **state)
{
	struct qmw_workplace *workplace;
	char inside[600], kept[600];
	struct place p;

	(void)state;
	place_make(&p);
	assert_int_equal(qmw_workplace_open(&p.options, &workplace), QMLA_OK);
	path_of(inside, p.folder, "fused.partial-abcdef");
	assert_int_equal(mkdir(inside, 0777), 0);
	path_of(inside, p.folder, "fused.partial-abcdef/model.safetensors");
	put(inside, "x");
	path_of(kept, p.folder, "fused");
	put(kept, "x");
	assert_int_equal(qmw_workplace_sweep(workplace, "fused.partial-"), QMLA_OK);
	*strrchr(inside, '/') = 0;
	assert_false(qmw_file_exists(inside));
	assert_true(qmw_file_exists(kept));
	qmw_workplace_close(workplace);
	place_remove(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_layer_state),
		cmocka_unit_test(test_corpus),
		cmocka_unit_test(test_workplace_resumes),
		cmocka_unit_test(test_workplace_refuses),
		cmocka_unit_test(test_workplace_delivers),
		cmocka_unit_test(test_workplace_removed_in_order),
		cmocka_unit_test(test_workplace_sweeps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
