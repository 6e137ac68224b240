/* SPDX-License-Identifier: Apache-2.0 */
/** @file Writing files that are either whole or not there. Blocking; any thread. */
#ifndef QMW_CALIBRATE_DISK_H
#define QMW_CALIBRATE_DISK_H

#include <stddef.h>
#include <stdint.h>

#include <qmla/status.h>

/** The status that an errno of a file operation amounts to. */
qmla_status_t qmw_disk_status(int error);

/** Writes all of @p data at @p offset; @p path names the file in the log. */
qmla_status_t qmw_disk_write(int fd, const void *data, size_t bytes, uint64_t offset,
			     const char *path);

/** Flushes @p fd, renames @p temporary to @p path and flushes the directory. Logs. */
qmla_status_t qmw_disk_publish(int fd, const char *temporary, const char *path);

/** A whole small file at once: "path.tmp", flushed, renamed. Logs. */
qmla_status_t qmw_disk_save(const char *path, const void *data, size_t bytes);

/** Makes a directory; one that is there is fine. Logs. */
qmla_status_t qmw_disk_directory(const char *path);

/** Flushes the directory that holds @p path, so that renames in it last. Logs. */
qmla_status_t qmw_disk_sync_parent(const char *path);

/** Removes a directory and the files in it, not deeper than one folder. Logs. */
qmla_status_t qmw_disk_remove(const char *path);

/** The same; the files named in @p last (up to a NULL) go when all else is gone, in their order. */
qmla_status_t qmw_disk_remove_last(const char *path, const char *const *last);

/** Removes the files and folders of directory @p path whose names begin with @p prefix. Logs. */
qmla_status_t qmw_disk_sweep(const char *path, const char *prefix);

#endif /* QMW_CALIBRATE_DISK_H */
