#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes mla-s-packed/: mla-s read with a packed cache, by the Python code in tools/quantmla.

    python3 tests/golden/make_packed.py [--check]

That code shares nothing with the C code: forward, transforms, quantiser and page bytes are
written a second time, in float64 where it matters, so each checks the other. See README.md.
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from quantmla import caches, calibrate_io, record, tensors  # noqa: E402
from quantmla.model import Model, Rounded  # noqa: E402

MLA_S = os.path.join(HERE, "..", "data", "mla-s")
TEXT = os.path.join(HERE, "..", "data", "prompts", "golden.txt")
LENGTH = 512


def log_probabilities(model, tokens, cache):
    with torch.no_grad():
        return model.forward(tokens, cache).log_softmax(-1).numpy()


def kl(base, other):
    return float((np.exp(base) * (base - other)).sum(-1).mean())


def make(form, model, tokens, base):
    _, constants, rotation = calibrate_io.read(MLA_S)
    cache = caches.Packed(form, constants, rotation)
    result = log_probabilities(model, tokens, cache)
    layers, blocks = range(model.geometry.layers), range(LENGTH // 64 - 1)
    print(f"{form}: KL from the BF16 cache {kl(base, result):.3e}, "
          f"greedy bytes equal {(base.argmax(-1) == result.argmax(-1)).mean():.4f}")
    return {"pages": np.stack([np.stack([cache.page(i, block) for i in layers]) for block in blocks]),
            "log_probabilities": result.astype(np.float16),
            "last_log_probabilities": result[-64:].astype(np.float32)}


def same(name, made, kept):
    """Codes may differ where a target lies on a step's edge: on another CPU, or another BLAS."""
    good = made.keys() == kept.keys()
    for key in made if good else ():
        x, y = made[key].astype(np.float64), kept[key].astype(np.float64)
        near = (x != y).mean() < 0.02 if key == "pages" else abs(kl(y.reshape(-1, 256), x.reshape(-1, 256))) < 1e-4
        if x.shape != y.shape or not near:
            print(f"{name}: {key} differs")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Model(MLA_S, torch.float64)
    tokens = np.fromfile(TEXT, dtype=np.uint8)[:LENGTH]
    base = log_probabilities(model, tokens, Rounded(model))
    files = {"bf16": {"tokens": tokens, "log_probabilities": base.astype(np.float16)}}
    files |= {form: make(form, model, tokens, base) for form in record.FORMATS}
    good = True
    for name, arrays in files.items():
        path = os.path.join(HERE, "mla-s-packed", name + ".safetensors")
        if args.check:
            good &= same(name, arrays, tensors.read_file(path))
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            tensors.write_file(path, arrays)
    if args.check:
        print("golden files agree" if good else "golden files DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
