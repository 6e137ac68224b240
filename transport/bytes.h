/* SPDX-License-Identifier: Apache-2.0 */
/** @file Little-endian loads and stores at any alignment. Any thread; never block. */
#ifndef QMT_BYTES_H
#define QMT_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

/** Writes two bytes. */
static inline void qmt_store16(uint8_t *p, uint16_t value)
{
	value = htole16(value);
	memcpy(p, &value, sizeof(value));
}

/** Writes four bytes. */
static inline void qmt_store32(uint8_t *p, uint32_t value)
{
	value = htole32(value);
	memcpy(p, &value, sizeof(value));
}

/** Writes eight bytes. */
static inline void qmt_store64(uint8_t *p, uint64_t value)
{
	value = htole64(value);
	memcpy(p, &value, sizeof(value));
}

/** Reads two bytes. */
static inline uint16_t qmt_load16(const uint8_t *p)
{
	uint16_t value;

	memcpy(&value, p, sizeof(value));
	return le16toh(value);
}

/** Reads four bytes. */
static inline uint32_t qmt_load32(const uint8_t *p)
{
	uint32_t value;

	memcpy(&value, p, sizeof(value));
	return le32toh(value);
}

/** Reads eight bytes. */
static inline uint64_t qmt_load64(const uint8_t *p)
{
	uint64_t value;

	memcpy(&value, p, sizeof(value));
	return le64toh(value);
}

#endif /* QMT_BYTES_H */
