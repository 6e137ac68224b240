#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints key_vectors.h: block keys worked out with hashlib alone (docs/format.md, keys)."""
import hashlib
import struct

CASES = [
    # name, identity, namespace, tokens
    ("zeros", bytes(32), b"", [0] * 128),
    ("counting", bytes(range(32)), b"", list(range(192))),
    ("namespace", bytes(range(32)), b"tenant-a", list(range(192))),
    ("large_ids", bytes([255] * 32), b"t\xc3\xa9", [(1 << 32) - 1 - 7919 * i for i in range(64)]),
    ("tail", bytes([7] * 32), b"x", [3 * i + 1 for i in range(64 + 63)]),
]


def keys(identity, namespace, tokens):
    state = hashlib.sha256(b"qmla-key-v1\0" + identity + namespace).digest()
    for start in range(0, len(tokens) // 64 * 64, 64):
        block = struct.pack("<64I", *tokens[start:start + 64])
        state = hashlib.sha256(state + block).digest()
        yield state[:16].hex()


print("/* SPDX-License-Identifier: Apache-2.0 */")
print("/* Written by key_vectors.py. */")
for name, identity, namespace, tokens in CASES:
    print(f"static const char *const vector_{name}[] = {{")
    for key in keys(identity, namespace, tokens):
        print(f'\t"{key}",')
    print("};")
