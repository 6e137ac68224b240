#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint that is the same function with hostile norms and RoPE scales.

The weight of kv_a_layernorm gets outliers, 32 times what they were, in every sixteenth
coordinate (and a 32nd in every other sixteenth), and kv_b_proj the inverse; pairs of the RoPE
key are multiplied by 2^-3 … 2^3 and those of the queries by the inverse. All factors are powers
of two, so every product and sum of the model has the bits it had: what a cache format loses on
this checkpoint and not on the other is the format's doing alone.

usage: stress_checkpoint.py SOURCE OUTPUT
"""

import json
import random
import re
import shutil
import struct
import sys
from pathlib import Path

ATTENTION = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:(\d+)\.)?(.+)$")
EXPONENT = {"BF16": ("H", 7, 0xFF), "F32": ("I", 23, 0xFF)}  # the range of F16 is too small


def shift(values, dtype, power):
    """Multiplies stored floats by 2^power through their exponents."""
    _, mantissa, mask = EXPONENT[dtype]
    out = []
    for value in values:
        exponent = value >> mantissa & mask
        if exponent:
            if not 0 < exponent + power < mask:
                raise SystemExit("a weight leaves the range of its dtype")
            value += power << mantissa
        elif value << 1 & (mask << mantissa + 1 | (1 << mantissa + 1) - 1):
            raise SystemExit("a subnormal weight cannot be scaled exactly")
        out.append(value)
    return out


class Layer:
    """The powers of two of one attention sub-layer."""

    def __init__(self, key, config):
        rng = random.Random(f"stress {key}")
        self.config = config
        self.norm = [5 if i % 32 == 3 else -5 if i % 32 == 19 else 0 for i in range(config["kv_lora_rank"])]
        rng.shuffle(self.norm)
        self.pairs = [rng.randint(-3, 3) for _ in range(config["qk_rope_head_dim"] // 2)]

    def rope(self, row):
        """Power of row `row` of a RoPE key."""
        half = len(self.pairs)
        interleaved = self.config.get("rope_interleave", True)
        return self.pairs[row // 2 if interleaved else row % half]

    def change(self, name, tensor):
        """The tensor's rows as (power by row, power by column)."""
        config, content = self.config, self.config["kv_lora_rank"]
        nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        if name == "kv_a_layernorm.weight":
            return self.norm, None
        if name == "kv_b_proj.weight":
            return None, [-p for p in self.norm]
        if name.startswith("kv_a_proj_with_mqa."):
            return [0] * content + [self.rope(i) for i in range(rope)], None
        if name in ("q_proj.weight", "q_b_proj.weight"):
            heads = tensor["shape"][0] // (nope + rope)
            return ([0] * nope + [-self.rope(i) for i in range(rope)]) * heads, None
        return None, None


def rewrite(path, out, config, layers):
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    for name, tensor in header.items():
        match = ATTENTION.match(name)
        if not match:
            continue
        layer = layers.setdefault(match.group(1, 2), Layer(match.group(1, 2), config))
        rows, columns = layer.change(match.group(3), tensor)
        if rows is None and columns is None:
            continue
        if tensor["dtype"] not in EXPONENT:
            raise SystemExit(f"{name}: dtype {tensor['dtype']} is not supported")
        code = EXPONENT[tensor["dtype"]][0]
        size, width = struct.calcsize(code), (tensor["shape"] + [1])[1]
        for row in range(tensor["shape"][0]):
            at = 8 + length + tensor["data_offsets"][0] + row * width * size
            values = struct.unpack_from(f"<{width}{code}", data, at)
            if columns:
                values = [shift([v], tensor["dtype"], p)[0] if p else v for v, p in zip(values, columns)]
            elif rows[row]:
                values = shift(values, tensor["dtype"], rows[row])
            struct.pack_into(f"<{width}{code}", data, at, *values)
    out.write_bytes(data)


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    source, output = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((source / "config.json").read_text())
    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    layers = {}
    for path in sorted(source.iterdir()):
        if path.name.startswith("quantmla."):
            continue
        if path.suffix == ".safetensors":
            rewrite(path, partial / path.name, config, layers)
        elif path.is_file():
            shutil.copy(path, partial / path.name)
    partial.rename(output)


if __name__ == "__main__":
    main()
