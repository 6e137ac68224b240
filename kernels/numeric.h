/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Conversions between float and the two 16-bit formats of the cache, and
 * unaligned little-endian loads and stores. Rounding is to nearest, ties to
 * even. Written without branches on the value so that loops over them vectorise.
 * All inline, pure, any thread.
 */
#ifndef QMK_NUMERIC_H
#define QMK_NUMERIC_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pages are little-endian, and these kernels read them in place"
#endif

#define QMK_FP16_MAX 65504.0f

/** The bits of a float. */
static inline uint32_t qmk_float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

/** The float of these bits. */
static inline float qmk_bits_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/** 16 bits from any address. */
static inline uint16_t qmk_load16(const void *from)
{
	uint16_t value;

	memcpy(&value, from, sizeof(value));
	return value;
}

/** 32 bits from any address. */
static inline uint32_t qmk_load32(const void *from)
{
	uint32_t value;

	memcpy(&value, from, sizeof(value));
	return value;
}

/** 64 bits from any address. */
static inline uint64_t qmk_load64(const void *from)
{
	uint64_t value;

	memcpy(&value, from, sizeof(value));
	return value;
}

/** 16 bits to any address. */
static inline void qmk_store16(void *to, uint16_t value)
{
	memcpy(to, &value, sizeof(value));
}

/** 32 bits to any address. */
static inline void qmk_store32(void *to, uint32_t value)
{
	memcpy(to, &value, sizeof(value));
}

/** 64 bits to any address. */
static inline void qmk_store64(void *to, uint64_t value)
{
	memcpy(to, &value, sizeof(value));
}

/** Exact. */
static inline float qmk_bf16_to_float(uint16_t value)
{
	return qmk_bits_float((uint32_t)value << 16);
}

/** A NaN stays a (quiet) NaN; what rounds above the largest finite value is infinite. */
static inline uint16_t qmk_float_to_bf16(float value)
{
	uint32_t bits = qmk_float_bits(value);
	uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
	uint32_t quiet = bits >> 16 | 0x40u;

	return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/** IEEE binary16, subnormals, infinities and NaN included. Exact. */
static inline float qmk_fp16_to_float(uint16_t value)
{
	uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
	uint32_t magnitude = value & 0x7fffu;
	/* Through an integer, so that no float is ever subnormal (and flushed by a caller's mode).
	 */
	uint32_t small = qmk_float_bits((float)(int32_t)magnitude * 0x1p-24f);
	uint32_t normal = (magnitude << 13) + 0x38000000u;
	uint32_t special = magnitude << 13 | 0x7f800000u;
	uint32_t finite = magnitude < 0x0400u ? small : normal;

	return qmk_bits_float(sign | (magnitude >= 0x7c00u ? special : finite));
}

/** IEEE binary16; overflow gives infinity, a NaN a quiet NaN. */
static inline uint16_t qmk_float_to_fp16(float value)
{
	uint32_t bits = qmk_float_bits(value);
	uint32_t sign = bits >> 16 & 0x8000u;
	uint32_t magnitude = bits & 0x7fffffffu;
	/* Subnormal result: adding 0.5 leaves the rounded units of 2^-24 in the low bits. */
	uint32_t small = qmk_float_bits(qmk_bits_float(magnitude) + 0.5f) - 0x3f000000u;
	uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
	uint32_t huge = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
	uint32_t finite = magnitude < 0x38800000u ? small : normal;

	return (uint16_t)(sign | (magnitude >= 0x47800000u ? huge : finite));
}

#endif /* QMK_NUMERIC_H */
