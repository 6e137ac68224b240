#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Test vectors of the page format, made from docs/format.md alone.

Python's standard library is all it needs. Nothing here calls the C code: the
tests hold the C code to these files. Run it without arguments in any directory;
it rewrites the files beside it. `--check` only compares.
"""

import hashlib
import json
import math
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = 64
MASK = (1 << 64) - 1


# --- XXH64, from xxHash's specification -------------------------------------

P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)


def rotate(x, r):
    return ((x << r) | (x >> (64 - r))) & MASK


def xxh64(data, seed=0):
    def mix(acc, word):
        return rotate((acc + word * P2) & MASK, 31) * P1 & MASK

    at, end = 0, len(data)
    if end >= 32:
        acc = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed & MASK, (seed - P1) & MASK]
        while end - at >= 32:
            for i, word in enumerate(struct.unpack_from("<4Q", data, at)):
                acc[i] = mix(acc[i], word)
            at += 32
        h = sum(rotate(a, r) for a, r in zip(acc, (1, 7, 12, 18))) & MASK
        for a in acc:
            h = ((h ^ mix(0, a)) * P1 + P4) & MASK
    else:
        h = (seed + P5) & MASK
    h = (h + end) & MASK
    while end - at >= 8:
        h = (rotate(h ^ mix(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if end - at >= 4:
        h = (rotate(h ^ (struct.unpack_from("<I", data, at)[0] * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    while at < end:
        h = rotate(h ^ (data[at] * P5 & MASK), 11) * P1 & MASK
        at += 1
    for shift, prime in ((33, P2), (29, P3)):
        h = (h ^ (h >> shift)) * prime & MASK
    return h ^ (h >> 32)


# --- numbers ----------------------------------------------------------------

def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def half_bits(x):
    return struct.unpack("<H", struct.pack("<e", x))[0]


def half(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def bf16_bits(x):
    bits = f32_bits(x)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def floats(values):
    """Little-endian float32 as hex."""
    return struct.pack(f"<{len(values)}f", *values).hex()


class Random:
    """splitmix64; normal numbers as the sum of twelve uniform ones."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def below(self, limit):
        return self.next() % limit

    def normal(self):
        return f32(sum((self.next() >> 40) / (1 << 24) for _ in range(12)) - 6)


# --- layout -----------------------------------------------------------------

FORMATS = {"c4r4": (1, 4), "c2r4": (2, 2), "paper-c4r4": (3, 4)}


def round_up(x, unit):
    return -(-x // unit) * unit


class Layout:
    def __init__(self, name, layers, content, rope):
        self.name, self.layers, self.content, self.rope = name, layers, content, rope
        self.format, self.bits = FORMATS[name]
        self.content_row = content * self.bits // 8
        self.rope_row = rope // 2
        self.rope_codes = TOKENS * self.content_row
        self.scales = self.rope_codes + TOKENS * self.rope_row
        self.groups = content // 64
        self.rope_groups = 2 if rope == 128 else 1
        self.record = round_up(3 * self.groups + 5 * self.rope_groups, 32)
        if name == "paper-c4r4":
            self.page = self.scales + TOKENS * self.record
            self.rope_scales = self.page
        else:
            self.rope_scales = self.scales + 2 * TOKENS
            self.page = self.rope_scales + 2 * TOKENS
        self.header = round_up(96 + 8 * layers, 128)
        self.block = self.header + layers * self.page

    def fingerprint(self):
        text = f"qmla-layout-v1:{self.name}:{self.layers}:{self.content}:{self.rope}:{TOKENS}"
        return struct.unpack("<Q", hashlib.sha256(text.encode()).digest()[:8])[0]

    def describe(self):
        return {"format": self.name, "layers": self.layers, "content_dim": self.content,
                "rope_dim": self.rope, "content_row_bytes": self.content_row,
                "rope_row_bytes": self.rope_row, "rope_codes_offset": self.rope_codes,
                "content_scales_offset": self.scales, "rope_scales_offset": self.rope_scales,
                "page_bytes": self.page, "header_bytes": self.header, "block_bytes": self.block,
                "fingerprint": f"{self.fingerprint():016x}"}


def account(layout, tokens):
    blocks = tokens // TOKENS
    row = 2 * (layout.content + layout.rope) * layout.layers
    total = blocks * layout.block + TOKENS * row
    return {"format": layout.name, "layers": layout.layers, "tokens": tokens,
            "total_bytes": total, "bf16_bytes": tokens * row,
            "compression": round(tokens * row / total, 4)}


# --- pages ------------------------------------------------------------------

def code_place(dim, bits, token, k):
    """Byte and bit of coordinate k of a token in a plane of codes."""
    fields = 8 // bits
    row = dim // fields
    byte, chunks = k // fields, row // 16
    low = chunks & -chunks
    reversed3 = (token & 1) << 2 | (token & 2) | (token & 4) >> 2
    chunk = byte // 16 ^ (reversed3 & low - 1)
    return token * row + 16 * chunk + byte % 16, bits * (k % fields)


def put_codes(page, at, dim, bits, codes):
    for t in range(TOKENS):
        for k in range(dim):
            byte, bit = code_place(dim, bits, t, k)
            page[at + byte] |= codes[t][k] << bit


def build_page(layout, content, rope, content_meta, rope_meta):
    """codes [64][dim]; meta: fp16 bits a token, or paper's [(scale bits, zero)] a group."""
    page = bytearray(layout.page)
    put_codes(page, 0, layout.content, layout.bits, content)
    put_codes(page, layout.rope_codes, layout.rope, 4, rope)
    for t in range(TOKENS):
        if layout.name != "paper-c4r4":
            struct.pack_into("<H", page, layout.scales + 2 * t, content_meta[t])
            struct.pack_into("<H", page, layout.rope_scales + 2 * t, rope_meta[t])
            continue
        record = struct.pack(f"<{layout.groups}H", *(s for s, _ in content_meta[t]))
        record += struct.pack(f"<{layout.rope_groups}I", *(s for s, _ in rope_meta[t]))
        record += bytes(z for _, z in content_meta[t]) + bytes(z for _, z in rope_meta[t])
        at = layout.scales + t * layout.record
        page[at:at + len(record)] = record
    return bytes(page)


def values_of(layout, codes, meta, bits, rope):
    """Stored values of a token, means not added."""
    if layout.name == "paper-c4r4":
        scale = (lambda s: struct.unpack("<f", struct.pack("<I", s))[0]) if rope else bf16
        return [f32(scale(meta[k // 64][0]) * (c - meta[k // 64][1])) for k, c in enumerate(codes)]
    scale = struct.unpack("<e", struct.pack("<H", meta))[0]
    return [f32(scale * (c - 2 ** (bits - 1) + 0.5)) for c in codes]


def random_page(layout, seed):
    rnd = Random(seed)
    content = [[rnd.below(1 << layout.bits) for _ in range(layout.content)] for _ in range(TOKENS)]
    rope = [[rnd.below(16) for _ in range(layout.rope)] for _ in range(TOKENS)]
    if layout.name == "paper-c4r4":
        cm = [[(bf16_bits(0.01 + rnd.below(1000) / 500), rnd.below(16))
               for _ in range(layout.groups)] for _ in range(TOKENS)]
        rm = [[(f32_bits(0.01 + rnd.below(1000) / 500), rnd.below(16))
               for _ in range(layout.rope_groups)] for _ in range(TOKENS)]
    else:
        cm = [half_bits(0.01 + rnd.below(1000) / 500) for _ in range(TOKENS)]
        rm = [half_bits(0.01 + rnd.below(1000) / 500) for _ in range(TOKENS)]
    return content, rope, cm, rm


# --- the writers, without constants -----------------------------------------

def midrise(values, bits):
    """Codes and fp16 scale of one vector: plain rounding, grid of 11 and two finer."""
    h = 2 ** (bits - 1)
    if bits == 4:
        base, first = f32(max(abs(x) for x in values) / 7.5), 0.6
    else:
        base = f32(math.sqrt(f32(sum(x * x for x in values)) / len(values)))
        first = 0.5
    step = (2.0 - first) / 10

    def attempt(ratio):
        scale = half(min(f32(base * ratio), 65504.0))
        inverse = 1 / scale if scale > 0 else 0
        codes = [int(min(max(x * inverse + h, 0), 2 * h - 1)) for x in values]
        return (sum((x - scale * (c - h + 0.5)) ** 2 for x, c in zip(values, codes)), ratio, codes,
                scale)

    best = None
    for n in range(11):
        trial = attempt(f32(first + step * n))
        best = trial if best is None or trial[0] < best[0] else best
    center = best[1]
    for side in (-step / 2, step / 2):
        trial = attempt(f32(center + side))
        best = trial if trial[0] < best[0] else best
    return best[2], half_bits(best[3])


def round_even(x):
    return int(round(x))  # Python rounds halves to even


def paper_group(values):
    low, high = min(values), max(values)
    scale = f32(max(f32(high - low), f32(1e-8)) / 15)
    zero = min(max(round_even(f32(-low / scale)), 0), 15)
    codes = [min(max(round_even(f32(f32(x / scale) + zero)), 0), 15) for x in values]
    return codes, scale, zero


def write_page(layout, content, rope):
    """Page of 64 rows of values by the plain writers."""
    codes, rcodes, cm, rm = [], [], [], []
    for t in range(TOKENS):
        if layout.name != "paper-c4r4":
            c, s = midrise(content[t], layout.bits)
            r, u = midrise(rope[t], 4)
            codes.append(c), rcodes.append(r), cm.append(s), rm.append(u)
            continue
        groups = [paper_group(content[t][g:g + 64]) for g in range(0, layout.content, 64)]
        rgroups = [paper_group(rope[t][g:g + 64]) for g in range(0, layout.rope, 64)]
        codes.append([c for g in groups for c in g[0]])
        rcodes.append([c for g in rgroups for c in g[0]])
        cm.append([(bf16_bits(s), z) for _, s, z in groups])
        rm.append([(f32_bits(s), z) for _, s, z in rgroups])
    return build_page(layout, codes, rcodes, cm, rm)


# --- blocks and keys --------------------------------------------------------

def page_checksum(page):
    chunks = [xxh64(page[i:i + 128], i // 128) for i in range(0, len(page), 128)]
    return xxh64(struct.pack(f"<{len(chunks)}Q", *chunks))


def seal(layout, key, identity, generation, pages):
    sums = [page_checksum(p) for p in pages]
    header = bytearray(layout.header)
    struct.pack_into("<8sHHI16s32sQIIQ", header, 0, b"QMLABLK\n", 1, layout.format, layout.layers,
                     key, identity, generation, TOKENS, 0, layout.fingerprint())
    struct.pack_into(f"<{layout.layers}Q", header, 96, *sums)
    struct.pack_into("<Q", header, 88, xxh64(bytes(header)))
    return bytes(header), sums, xxh64(struct.pack(f"<{layout.layers}Q", *sums))


def keys_of(identity, name_space, tokens):
    chain = hashlib.sha256(b"qmla-key-v1\0" + identity + name_space.encode()).digest()
    keys = []
    for i in range(0, len(tokens) - TOKENS + 1, TOKENS):
        chain = hashlib.sha256(chain + struct.pack("<64I", *tokens[i:i + TOKENS])).digest()
        keys.append(chain[:16].hex())
    return keys


# --- files ------------------------------------------------------------------

def make_layouts():
    shapes = [(f, n, c, r) for f in FORMATS
              for n, c, r in ((1, 64, 32), (3, 512, 64), (4, 512, 64), (5, 192, 128), (27, 512, 64),
                              (61, 512, 64), (256, 1024, 128))]
    return {"layouts": [Layout(*s).describe() for s in shapes],
            "accounts": [account(Layout(f, n, 512, 64), t) for f in FORMATS
                         for n in (3, 4, 27, 61) for t in (64, 4096, 131072)]}


def make_pages():
    pages = []
    for name, content, rope, seed in (("c4r4", 64, 32, 1), ("c4r4", 192, 64, 2),
                                      ("c2r4", 64, 64, 3), ("c2r4", 128, 128, 4),
                                      ("paper-c4r4", 64, 32, 5), ("paper-c4r4", 128, 128, 6)):
        layout = Layout(name, 1, content, rope)
        c, r, cm, rm = random_page(layout, seed)
        page = build_page(layout, c, r, cm, rm)
        rows = [{"token": t,
                 "content": floats(values_of(layout, c[t], cm[t], layout.bits, False)),
                 "rope": floats(values_of(layout, r[t], rm[t], 4, True))}
                for t in (1, 62)]
        pages.append({"format": name, "content_dim": content, "rope_dim": rope, "page": page.hex(),
                      "checksum": f"{page_checksum(page):016x}", "float32_rows": rows})
    return {"pages": pages}


def make_packed():
    """Input rows are splitmix64 normals, content of all tokens first; token 5 is zeros."""
    cases = []
    for name, content, rope, seed in (("c4r4", 64, 32, 11), ("c2r4", 128, 64, 12),
                                      ("paper-c4r4", 64, 64, 13), ("paper-c4r4", 128, 128, 14)):
        layout, rnd = Layout(name, 1, content, rope), Random(seed)
        c = [[rnd.normal() if t != 5 else 0.0 for _ in range(content)] for t in range(TOKENS)]
        r = [[rnd.normal() if t != 5 else 0.0 for _ in range(rope)] for t in range(TOKENS)]
        cases.append({"format": name, "content_dim": content, "rope_dim": rope, "seed": seed,
                      "first_content": floats(c[0][:4]),
                      "page": write_page(layout, c, r).hex()})
    return {"packed": cases}


def make_blocks():
    blocks = []
    for name, layers in (("c4r4", 2), ("c2r4", 5), ("paper-c4r4", 3)):
        layout = Layout(name, layers, 64, 32)
        pages = [build_page(layout, *random_page(layout, 100 + i)) for i in range(layers)]
        key, identity = bytes(range(16)), bytes(range(100, 132))
        header, sums, digest = seal(layout, key, identity, 0x0102030405060708, pages)
        blocks.append({"format": name, "layers": layers, "content_dim": 64, "rope_dim": 32,
                       "key": key.hex(), "identity": identity.hex(),
                       "generation": "0102030405060708", "header": header.hex(),
                       "page_checksums": [f"{s:016x}" for s in sums], "digest": f"{digest:016x}",
                       "page_0": pages[0].hex()})
    sums = [{"bytes": n, "checksum": f"{page_checksum(bytes((7 * i + 3) & 255 for i in range(n))):016x}"}
            for n in (128, 1024, 1152, 18688)]
    return {"blocks": blocks, "pattern_checksums": sums}


def make_keys():
    identity = hashlib.sha256(b"an example").digest()
    tokens = [(i * i * 2654435761) & 0xFFFFFFFF for i in range(200)]
    return {"identity": identity.hex(), "tokens": tokens,
            "keys": [{"namespace": n, "keys": keys_of(identity, n, tokens)}
                     for n in ("", "tenant-a", "naïve/ns")],
            "simple": {"identity": "00" * 32, "namespace": "", "first_token": 0, "tokens": 128,
                       "keys": keys_of(bytes(32), "", list(range(128)))},
            "other_identity": {"identity": "00" * 32, "namespace": "",
                               "keys": keys_of(bytes(32), "", tokens)}}


def document_examples():
    """What docs/format.md quotes."""
    block = make_blocks()["blocks"][0]
    return [f"{Layout('c4r4', 2, 64, 32).fingerprint():016x}",
            f"{Layout('c4r4', 3, 512, 64).fingerprint():016x}",
            f"{page_checksum(bytes((7 * i + 3) & 255 for i in range(18688))):016x}",
            f"{page_checksum(bytes(range(128))):016x}", block["header"],
            *keys_of(bytes(32), "", list(range(128)))]


def check_document():
    path = os.path.join(HERE, "..", "..", "..", "docs", "format.md")
    with open(path, encoding="utf-8") as file:
        text = "".join(file.read().split())
    missing = [e for e in document_examples() if e not in text]
    for example in missing:
        print(f"docs/format.md does not quote {example}", file=sys.stderr)
    return not missing


def main():
    check, failed = "--check" in sys.argv[1:], False
    files = {"layouts.json": make_layouts, "pages.json": make_pages, "packed.json": make_packed,
             "blocks.json": make_blocks, "keys.json": make_keys}
    for name, make in files.items():
        text = json.dumps(make(), indent=None, separators=(",", ":"), ensure_ascii=True)
        text = text.replace("},{", "},\n{").replace(":[{", ":[\n{") + "\n"
        path = os.path.join(HERE, name)
        if not check:
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
        elif not os.path.exists(path) or open(path, encoding="ascii").read() != text:
            print(f"{name} differs from what the format says", file=sys.stderr)
            failed = True
    if check and not check_document():
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
