/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

#define LINE_MAX_BYTES 2048

/* Relaxed everywhere: a level change may reach another thread a line late. */
static atomic_int log_level = QMC_LOG_INFO;
static atomic_int log_format = QMC_LOG_TEXT;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

qmla_status_t qmc_log_level_parse(const char *text, enum qmc_log_level *level)
{
	for (int i = QMC_LOG_ERROR; i <= QMC_LOG_TRACE; i++) {
		if (strcmp(text, level_names[i]) == 0) {
			*level = (enum qmc_log_level)i;
			return QMLA_OK;
		}
	}
	return QMLA_ERR_INVALID_ARGUMENT;
}

qmla_status_t qmc_log_format_parse(const char *text, enum qmc_log_format *format)
{
	if (strcmp(text, "text") == 0)
		*format = QMC_LOG_TEXT;
	else if (strcmp(text, "json") == 0)
		*format = QMC_LOG_JSON;
	else
		return QMLA_ERR_INVALID_ARGUMENT;
	return QMLA_OK;
}

void qmc_log_configure(enum qmc_log_level level, enum qmc_log_format format)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
	atomic_store_explicit(&log_format, (int)format, memory_order_relaxed);
}

bool qmc_log_enabled(enum qmc_log_level level)
{
	return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* Appends @text with JSON string escapes; stops when @out is full. */
static size_t escape_into(char *out, size_t size, const char *text)
{
	size_t used = 0;

	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		char piece[8];
		int n;

		if (c == '"' || c == '\\')
			n = snprintf(piece, sizeof(piece), "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			n = snprintf(piece, sizeof(piece), "\\u%04x", c);
		else
			n = snprintf(piece, sizeof(piece), "%c", c);
		if (used + (size_t)n >= size)
			break;
		memcpy(out + used, piece, (size_t)n);
		used += (size_t)n;
	}
	out[used] = '\0';
	return used;
}

static void strip_control(char *text)
{
	for (; *text; text++) {
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
	}
}

static void timestamp(char *out, size_t size)
{
	struct timespec ts;
	struct tm tm;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	n = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out + n, size - n, ".%03ldZ", ts.tv_nsec / 1000000);
}

void qmc_log_write(enum qmc_log_level level, const char *component, const char *format, ...)
{
	char message[LINE_MAX_BYTES];
	char escaped[LINE_MAX_BYTES * 2];
	char line[LINE_MAX_BYTES * 2 + 160];
	char when[40];
	va_list args;
	int n;

	if (!qmc_log_enabled(level))
		return;
	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	timestamp(when, sizeof(when));
	if (atomic_load_explicit(&log_format, memory_order_relaxed) == QMC_LOG_JSON) {
		escape_into(escaped, sizeof(escaped), message);
		n = snprintf(line, sizeof(line),
			     "{\"time\":\"%s\",\"level\":\"%s\",\"component\":\"%s\",\"message\":"
			     "\"%s\"}\n",
			     when, level_names[level], component, escaped);
	} else {
		strip_control(message);
		n = snprintf(line, sizeof(line), "%s %-5s %-9s %s\n", when, level_names[level],
			     component, message);
	}
	/* One write(2) keeps lines of different threads and processes whole. */
	if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}

bool qmc_log_limiter_pass(struct qmc_log_limiter *limiter, unsigned *suppressed)
{
	long long now = qmc_clock_now();
	long long next = atomic_load_explicit(&limiter->next_ns, memory_order_relaxed);

	if (now < next ||
	    !atomic_compare_exchange_strong_explicit(&limiter->next_ns, &next, now + QMC_NS_PER_S,
						     memory_order_relaxed, memory_order_relaxed)) {
		atomic_fetch_add_explicit(&limiter->suppressed, 1, memory_order_relaxed);
		return false;
	}
	*suppressed = atomic_exchange_explicit(&limiter->suppressed, 0, memory_order_relaxed);
	return true;
}
