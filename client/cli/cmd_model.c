/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cmd_model.h"
#include "client/cli/command.h"
#include "client/cli/failure.h"
#include "client/model/model.h"
#include "common/digest.h"
#include "common/log.h"
#include "common/options.h"
#include "kernels/layout.h"

#define PROGRAM "qmla model inspect"

static const enum qmk_format formats[] = {QMK_FORMAT_C4R4, QMK_FORMAT_C2R4, QMK_FORMAT_PAPER_C4R4};
static const uint64_t lengths[] = {4096, 131072};

#define FORMAT_COUNT (sizeof(formats) / sizeof(formats[0]))
#define LENGTH_COUNT (sizeof(lengths) / sizeof(lengths[0]))

struct flags {
	char *format;
	bool json, ignore_calibration;
};

/* What inspect knows. */
struct report {
	const char *directory;
	const struct qmw_model_info *info;
	const struct qmk_layout *layout;
	char identity[65];
};

static const char *length_name(uint64_t tokens)
{
	return tokens == 4096 ? "4K" : "128K";
}

static void print_family(const struct qmw_model_info *m)
{
	printf("  family        %s, %u decoder layers, %u cache layers%s\n", m->family,
	       m->decoder_layers, m->layers, m->fp8 ? ", FP8 weights" : "");
	if (!m->experts) {
		puts("  experts       none");
		return;
	}
	printf("  experts       %u of %u a token in %u layers", m->experts_per_token,
	       m->experts + m->zero_experts, m->sparse_layers);
	if (m->zero_experts)
		printf(", %u of them compute nothing", m->zero_experts);
	printf(", %u shared\n", m->shared_experts);
}

static void print_geometry(const struct report *r)
{
	const struct qmw_model_info *m = r->info;

	printf("%s\n", r->directory);
	printf("  architecture  %s, %" PRIu64 " parameters\n", m->architecture, m->parameters);
	print_family(m);
	printf("  geometry      hidden %u, %u heads, d_c %u, d_r %u, nope %u, value %u\n",
	       m->hidden, m->heads, m->content_dim, m->rope_dim, m->nope_dim, m->value_dim);
	printf("  vocabulary    %u, end token %" PRId64 ", %u positions\n", m->vocab, m->eos,
	       m->max_position);
	printf("  calibration   %s\n", m->calibration);
	printf("  identity      %s (%s)\n", r->identity, qmk_format_name(r->layout->format));
	printf("  block         %" PRIu64 " bytes: 64 tokens, header %u, %u pages of %u\n\n",
	       r->layout->block_bytes, r->layout->header_bytes, r->layout->layers,
	       r->layout->page_bytes);
}

static qmla_status_t account(const struct report *r, enum qmk_format format, uint64_t tokens,
			     struct qmk_account *result, double *record)
{
	struct qmk_layout layout;
	qmla_status_t status = qmk_layout_init(format, r->info->layers, r->info->content_dim,
					       r->info->rope_dim, &layout);

	if (status != QMLA_OK)
		return status;
	qmk_layout_account(&layout, tokens, result);
	*record = qmk_layout_token_bytes(&layout);
	return QMLA_OK;
}

static double bf16_bytes(const struct report *r)
{
	return 2.0 * (r->info->content_dim + r->info->rope_dim);
}

/* A geometry that a format cannot hold gives no line. */
static void print_format(const struct report *r, enum qmk_format format)
{
	struct qmk_account a;
	double record;

	if (account(r, format, lengths[0], &a, &record) != QMLA_OK)
		return;
	printf("  %-12s %8.1f", qmk_format_name(format), record);
	for (size_t i = 0; i < LENGTH_COUNT; i++) {
		if (account(r, format, lengths[i], &a, &record) == QMLA_OK)
			printf("   %8.1f %6.3fx %9.2f MiB", a.token_layer_bytes, a.compression,
			       (double)a.total_bytes / 1048576);
	}
	puts("");
}

static void print_text(const struct report *r)
{
	print_geometry(r);
	puts("Bytes a token and layer, with headers, checksums and the BF16 tail counted:");
	printf("  %-12s %8s", "cache", "record");
	for (size_t i = 0; i < LENGTH_COUNT; i++)
		printf("   %8s at %-4s %13s", "", length_name(lengths[i]), "one sequence");
	puts("");
	printf("  %-12s %8.1f", "bf16", bf16_bytes(r));
	for (size_t i = 0; i < LENGTH_COUNT; i++)
		printf("   %8.1f %6.3fx %9.2f MiB", bf16_bytes(r), 1.0,
		       bf16_bytes(r) * r->info->layers * (double)lengths[i] / 1048576);
	puts("");
	for (size_t i = 0; i < FORMAT_COUNT; i++)
		print_format(r, formats[i]);
}

static json_t *account_json(const struct qmk_account *a)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f}", "tokens", (json_int_t)a->tokens,
			 "page_bytes", (json_int_t)a->page_bytes, "header_bytes",
			 (json_int_t)a->header_bytes, "tail_bytes", (json_int_t)a->tail_bytes,
			 "total_bytes", (json_int_t)a->total_bytes, "bf16_bytes",
			 (json_int_t)a->bf16_bytes, "token_layer_bytes", a->token_layer_bytes,
			 "compression", a->compression);
}

static json_t *formats_json(const struct report *r)
{
	json_t *root = json_object();
	struct qmk_account a;
	double record = 0; /* written with the first entry of a list */

	for (size_t f = 0; f < FORMAT_COUNT; f++) {
		json_t *list = json_array();

		for (size_t i = 0; i < LENGTH_COUNT; i++) {
			if (account(r, formats[f], lengths[i], &a, &record) == QMLA_OK)
				json_array_append_new(list, account_json(&a));
		}
		if (json_array_size(list) > 0)
			json_object_set_new(
				root, qmk_format_name(formats[f]),
				json_pack("{s:f,s:O}", "record_bytes", record, "at", list));
		json_decref(list);
	}
	return root;
}

static void print_json(const struct report *r)
{
	const struct qmw_model_info *m = r->info;
	json_t *root = json_pack(
		"{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,"
		"s:I,s:b,s:s,s:s,s:s,s:I,s:f,s:o}",
		"directory", r->directory, "architecture", m->architecture, "family", m->family,
		"decoder_layers", (json_int_t)m->decoder_layers, "sparse_layers",
		(json_int_t)m->sparse_layers, "experts", (json_int_t)m->experts, "zero_experts",
		(json_int_t)m->zero_experts, "experts_per_token", (json_int_t)m->experts_per_token,
		"shared_experts", (json_int_t)m->shared_experts, "fp8", m->fp8, "parameters",
		(json_int_t)m->parameters, "layers", (json_int_t)m->layers, "hidden",
		(json_int_t)m->hidden, "heads", (json_int_t)m->heads, "content_dim",
		(json_int_t)m->content_dim, "rope_dim", (json_int_t)m->rope_dim, "nope_dim",
		(json_int_t)m->nope_dim, "value_dim", (json_int_t)m->value_dim, "vocab",
		(json_int_t)m->vocab, "max_position", (json_int_t)m->max_position, "eos",
		(json_int_t)m->eos, "calibrated", m->calibrated, "calibration", m->calibration,
		"format", qmk_format_name(r->layout->format), "identity", r->identity,
		"block_bytes", (json_int_t)r->layout->block_bytes, "bf16_token_layer_bytes",
		bf16_bytes(r), "formats", formats_json(r));

	json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
	puts("");
	json_decref(root);
}

static int inspect(const struct flags *f, const char *directory, enum qmk_format format)
{
	struct qmw_model_options options = {.format = format,
					    .ignore_calibration = f->ignore_calibration};
	struct report report = {.directory = directory};
	struct qmw_model *model;
	uint8_t identity[32];
	qmla_status_t status = qmw_model_open(directory, &options, &model);

	if (status != QMLA_OK) {
		qmw_failure_print(PROGRAM, f->json, status, "%s: %s", directory,
				  qmla_status_text(status));
		return 1;
	}
	report.info = qmw_model_info(model);
	report.layout = qmw_model_layout(model);
	qmw_model_identity(model, identity);
	qmc_hex_encode(identity, sizeof(identity), report.identity);
	if (f->json)
		print_json(&report);
	else
		print_text(&report);
	qmw_model_close(model);
	return 0;
}

static int run(void *user, int count, char **directories)
{
	enum qmk_format format = QMK_FORMAT_C4R4;
	const struct flags *f = user;

	if (count == 0) {
		qmw_failure_print(PROGRAM, f->json, QMLA_ERR_INVALID_ARGUMENT,
				  "name a checkpoint's directory");
		return 2;
	}
	if (f->format && qmk_format_parse(f->format, &format) != QMLA_OK) {
		qmw_failure_print(PROGRAM, f->json, QMLA_ERR_INVALID_ARGUMENT,
				  "--format: '%s' is none of c4r4, c2r4, paper-c4r4", f->format);
		return 2;
	}
	return inspect(f, directories[0], format);
}

int qmw_cmd_model(int argc, char **argv)
{
	struct flags f = {0};
	const struct qmc_option table[] = {
		{"format", 'f', QMC_OPTION_STRING, &f.format, "NAME",
		 "whose identity and block to show: c4r4 (default), c2r4, paper-c4r4", 0, 0, false},
		{"ignore-calibration", 0, QMC_OPTION_BOOL, &f.ignore_calibration, NULL,
		 "as a worker that runs without quantmla.json: another identity", 0, 0, false},
		{"json", 0, QMC_OPTION_BOOL, &f.json, NULL, "print JSON", 0, 0, false},
	};
	const struct qmc_options options = {
		.program = PROGRAM,
		.synopsis = "[flags] DIR",
		.summary = "Shows a checkpoint's geometry, the identity its cached blocks are "
			   "shared under,\nand what its cache takes in each format.",
		.epilogue = "Exit status: 0 done, 1 the checkpoint is no good, 2 wrong usage.",
		.table = table,
		.count = sizeof(table) / sizeof(table[0]),
		.max_operands = 1,
	};

	if (argc < 2 || (strcmp(argv[1], "inspect") != 0 && argv[1][0] != '-')) {
		fprintf(stderr, "qmla model: say 'qmla model inspect DIR'\n");
		return 2;
	}
	if (strcmp(argv[1], "inspect") == 0) {
		argc--;
		argv++;
	}
	return qmw_command_run(&options, argc, argv, NULL, QMW_TARGET_NODES, run, &f);
}
