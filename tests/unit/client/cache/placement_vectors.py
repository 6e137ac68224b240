#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints placement_vectors.h: ranks by a plain Python XXH64 (client/cache/placement.h)."""
import hashlib
import math

M = (1 << 64) - 1
P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)
NODES = [("10.0.0.1:7000", 1.0), ("10.0.0.2:7000", 2.0), ("c", 0.5), ("[fd00::7]:7000", 1.0)]


def rotl(x, r):
    return ((x << r) | (x >> (64 - r))) & M


def xxh64(data, seed):
    """Inputs under 32 bytes only."""
    assert len(data) < 32
    h = (seed + P5 + len(data)) & M
    at = 0
    while at + 8 <= len(data):
        lane = int.from_bytes(data[at:at + 8], "little")
        h ^= (rotl(lane * P2 & M, 31) * P1) & M
        h = (rotl(h, 27) * P1 + P4) & M
        at += 8
    if at + 4 <= len(data):
        h ^= int.from_bytes(data[at:at + 4], "little") * P1 & M
        h = (rotl(h, 23) * P2 + P3) & M
        at += 4
    for byte in data[at:]:
        h ^= byte * P5 & M
        h = rotl(h, 11) * P1 & M
    h = (h ^ (h >> 33)) * P2 & M
    h = (h ^ (h >> 29)) * P3 & M
    return h ^ (h >> 32)


assert xxh64(b"", 0) == 0xEF46DB3751D8E999
assert xxh64(b"abc", 0) == 0x44BC2CF5AD770999

print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* Written by placement_vectors.py. */")
print("static const struct {\n\tconst char *key;\n\tuint16_t rank[4];\n\tdouble score;\n} vectors[] = {")
for i in range(12):
    key = hashlib.sha256(b"placement %d" % i).digest()[:16]
    scored = []
    for index, (name, weight) in enumerate(NODES):
        u = ((xxh64(key, xxh64(name.encode(), 0)) >> 11) + 0.5) / 2**53
        scored.append((-weight / math.log(u), index))
    scored.sort(reverse=True)
    ranks = ", ".join(str(index) for _, index in scored)
    print(f'\t{{"{key.hex()}", {{{ranks}}}, {scored[0][0]!r}}},')
print("};")
