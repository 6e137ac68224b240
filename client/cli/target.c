/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/model.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/log.h"
#include "kernels/layout.h"

#define DEFAULT_NODES "127.0.0.1:7600"

qmla_status_t qmw_target_parse_layout(const char *text, qmla_layout_t *layout)
{
	char name[16];
	enum qmk_format format;
	qmla_layout_t parsed = {0};
	int end = 0;

	if (sscanf(text, "%15[^:]:%9u:%9u:%9u%n", name, &parsed.layers, &parsed.content_dim,
		   &parsed.rope_dim, &end) != 4 ||
	    text[end] != '\0' || qmk_format_parse(name, &format) != QMLA_OK)
		return QMLA_ERR_FORMAT;
	parsed.format = (qmla_format_t)format;
	*layout = parsed;
	return QMLA_OK;
}

static qmla_status_t from_flags(struct qmw_target *target, const char *program,
				const qmla_identity_t *known)
{
	if (!target->layout || (!target->identity && !known)) {
		fprintf(stderr,
			"%s: say whose blocks: --model DIR, or --identity HEX and --layout SPEC\n",
			program);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (qmw_target_parse_layout(target->layout, &target->layout_value) != QMLA_OK ||
	    qmla_layout_block_bytes(&target->layout_value) == 0) {
		fprintf(stderr, "%s: --layout '%s' is not FORMAT:LAYERS:DC:DR, as c4r4:27:512:64\n",
			program, target->layout);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (!target->identity) {
		target->identity_bytes = *known;
		return QMLA_OK;
	}
	if (qmc_hex_decode(target->identity, target->identity_bytes.bytes,
			   sizeof(target->identity_bytes.bytes)) != QMLA_OK) {
		fprintf(stderr, "%s: --identity '%s' is not 64 hex digits\n", program,
			target->identity);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	return QMLA_OK;
}

static qmla_status_t from_model(struct qmw_target *target, const char *program)
{
	struct qmw_model_options options = {0};
	const struct qmk_layout *layout;
	struct qmw_model *model;
	qmla_status_t status;

	if (target->layout && qmk_format_parse(target->layout, &options.format) != QMLA_OK) {
		fprintf(stderr,
			"%s: with --model, --layout is c4r4, c2r4 or paper-c4r4, not '%s'\n",
			program, target->layout);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	if (target->identity) {
		fprintf(stderr, "%s: --model has an identity of its own; leave out --identity\n",
			program);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	status = qmw_model_open(target->model, &options, &model);
	if (status != QMLA_OK) {
		fprintf(stderr, "%s: model %s: %s\n", program, target->model,
			qmla_status_text(status));
		return status;
	}
	layout = qmw_model_layout(model);
	target->layout_value = (qmla_layout_t){(qmla_format_t)layout->format, layout->layers,
					       layout->content_dim, layout->rope_dim};
	qmw_model_identity(model, target->identity_bytes.bytes);
	qmw_model_close(model);
	return QMLA_OK;
}

static qmla_status_t check_known(const struct qmw_target *target, const char *program,
				 const qmla_identity_t *known)
{
	if (!known || memcmp(known, &target->identity_bytes, sizeof(*known)) == 0)
		return QMLA_OK;
	fprintf(stderr, "%s: the block was made with another identity than the one given\n",
		program);
	return QMLA_ERR_IDENTITY_MISMATCH;
}

static qmla_status_t set_log_level(const struct qmw_target *target, const char *program)
{
	enum qmc_log_level level = QMC_LOG_WARN;

	if (target->log_level && qmc_log_level_parse(target->log_level, &level) != QMLA_OK) {
		fprintf(stderr, "%s: --log-level '%s' is none of error, warn, info, debug, trace\n",
			program, target->log_level);
		return QMLA_ERR_INVALID_ARGUMENT;
	}
	qmc_log_configure(level, QMC_LOG_TEXT);
	return QMLA_OK;
}

const char *qmw_target_nodes(const struct qmw_target *target)
{
	const char *environment = getenv("QMLA_NODES");

	if (target->nodes)
		return target->nodes;
	return environment && environment[0] ? environment : DEFAULT_NODES;
}

uint32_t qmw_target_timeout_ms(const struct qmw_target *target)
{
	return (uint32_t)(target->timeout_ns / QMC_NS_PER_MS);
}

static qmla_status_t create_client(struct qmw_target *target)
{
	qmla_client_config_t config = {
		.struct_size = sizeof(config),
		.nodes = qmw_target_nodes(target),
		.identity = target->identity_bytes,
		.layout = target->layout_value,
		.transport = target->transport,
		.connect_timeout_ms = qmw_target_timeout_ms(target),
		.call_timeout_ms = qmw_target_timeout_ms(target),
		.tls_ca_file = target->tls_ca,
		.tls_certificate_file = target->tls_certificate,
		.tls_key_file = target->tls_key,
	};

	return qmla_client_create(&config, &target->client);
}

qmla_status_t qmw_target_open(struct qmw_target *target, const char *program,
			      enum qmw_target_need need, const qmla_identity_t *known)
{
	qmla_status_t status = set_log_level(target, program);

	if (status != QMLA_OK)
		return status;
	if (need == QMW_TARGET_NODES)
		target->layout_value = (qmla_layout_t){QMLA_FORMAT_C4R4, 1, 512, 64};
	else if (target->model)
		status = from_model(target, program);
	else
		status = from_flags(target, program, known);
	if (status == QMLA_OK && need == QMW_TARGET_BLOCKS)
		status = check_known(target, program, known);
	if (status != QMLA_OK)
		return status;
	return create_client(target);
}

void qmw_target_close(struct qmw_target *target)
{
	qmla_client_destroy(target->client);
	target->client = NULL;
}
