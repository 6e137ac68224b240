/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
 * 2014): the same numbers on every machine and with every C library. Not for secrets.
 */
#ifndef QMC_SPLITMIX_H
#define QMC_SPLITMIX_H

#include <stdint.h>

#define QMC_SPLITMIX_GAMMA UINT64_C(0x9e3779b97f4a7c15)

/** The generator's finaliser: one state to 64 well mixed bits. */
static inline uint64_t qmc_splitmix_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/** 64 uniform bits; @p state advances. One thread a state. */
static inline uint64_t qmc_splitmix_next(uint64_t *state)
{
	*state += QMC_SPLITMIX_GAMMA;
	return qmc_splitmix_mix(*state);
}

#endif /* QMC_SPLITMIX_H */
