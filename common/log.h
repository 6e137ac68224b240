/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Structured log to standard error, one line an event. Text form:
 *   2026-11-30T12:00:00.123Z warn  tcp      peer 10.0.0.2:7000 closed the connection
 * JSON form (--log-format json): {"time":…,"level":…,"component":…,"message":…}.
 * The function that first decides on an error logs it; callers pass it on.
 */
#ifndef QMC_LOG_H
#define QMC_LOG_H

#include <stdbool.h>
#include <stdio.h>

#include <qmla/status.h>

enum qmc_log_level { QMC_LOG_ERROR, QMC_LOG_WARN, QMC_LOG_INFO, QMC_LOG_DEBUG, QMC_LOG_TRACE };

enum qmc_log_format { QMC_LOG_TEXT, QMC_LOG_JSON };

/** Parses "error", "warn", "info", "debug" or "trace". */
qmla_status_t qmc_log_level_parse(const char *text, enum qmc_log_level *level);

/** Parses "text" or "json". */
qmla_status_t qmc_log_format_parse(const char *text, enum qmc_log_format *format);

/** Sets the level and format of the process. Any thread, at any time. */
void qmc_log_configure(enum qmc_log_level level, enum qmc_log_format format);

/** True when a line of @p level would be written; guards costly arguments. */
bool qmc_log_enabled(enum qmc_log_level level);

/** Writes one line, newline added, control characters escaped. Any thread. */
void qmc_log_write(enum qmc_log_level level, const char *component, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/** For a message that a hostile peer can cause at will: at most one a second per call site. */
struct qmc_log_limiter {
	_Atomic long long next_ns;
	_Atomic unsigned suppressed;
};

/**
 * True when a line may be written now; @p suppressed then gets how many were not since the
 * last. Any thread.
 */
bool qmc_log_limiter_pass(struct qmc_log_limiter *limiter, unsigned *suppressed);

#define qmc_error(component, ...) qmc_log_write(QMC_LOG_ERROR, component, __VA_ARGS__)
#define qmc_warn(component, ...)  qmc_log_write(QMC_LOG_WARN, component, __VA_ARGS__)
#define qmc_info(component, ...)  qmc_log_write(QMC_LOG_INFO, component, __VA_ARGS__)
#define qmc_debug(component, ...)                                                                  \
	do {                                                                                       \
		if (qmc_log_enabled(QMC_LOG_DEBUG))                                                \
			qmc_log_write(QMC_LOG_DEBUG, component, __VA_ARGS__);                      \
	} while (0)
#define qmc_warn_limited(component, ...)                                                           \
	do {                                                                                       \
		static struct qmc_log_limiter limiter_;                                            \
		unsigned suppressed_;                                                              \
		if (qmc_log_limiter_pass(&limiter_, &suppressed_)) {                               \
			if (suppressed_)                                                           \
				qmc_log_write(QMC_LOG_WARN, component,                             \
					      "%u like the next line "                             \
					      "were left out",                                     \
					      suppressed_);                                        \
			qmc_log_write(QMC_LOG_WARN, component, __VA_ARGS__);                       \
		}                                                                                  \
	} while (0)

#endif /* QMC_LOG_H */
