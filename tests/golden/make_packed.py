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
LENGTH = 512  # tokens whose pages are kept


def log_probabilities(model, tokens, cache):
    with torch.no_grad():
        return model.forward(tokens, cache).log_softmax(-1).numpy()


def compare(base, other):
    """Mean KL in nats and share of equal greedy bytes, [2]."""
    return np.array([(np.exp(base) * (base - other)).sum(-1).mean(),
                     (base.argmax(-1) == other.argmax(-1)).mean()], dtype=np.float32)


def make(form, model, text, bases):
    _, constants, rotation = calibrate_io.read(MLA_S)
    cache = caches.Packed(form, constants, rotation)
    cost = [compare(base, log_probabilities(model, row, cache)) for row, base in zip(text, bases)]
    tokens = text[0, :LENGTH]
    result = log_probabilities(model, tokens, cache)
    layers, blocks = range(model.geometry.layers), range(LENGTH // 64 - 1)
    print(f"{form}: from the BF16 cache KL and equal greedy bytes {np.array(cost).tolist()}")
    return {"tokens": tokens, "last_log_probabilities": result[-64:].astype(np.float32), "cost": np.stack(cost),
            "pages": np.stack([np.stack([cache.page(i, block) for i in layers]) for block in blocks])}


def near(key, x, y):
    """Codes may differ where a target lies on a step's edge: on another CPU, or another BLAS."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if key == "pages":
        return (x != y).mean() < 0.02
    if key == "cost":
        return bool((np.abs(x[:, 0] / y[:, 0] - 1) < 0.1).all() and (np.abs(x[:, 1] - y[:, 1]) < 0.005).all())
    return bool((x == y).all()) if key == "tokens" else bool(compare(y, x)[0] < 1e-3)


def same(name, made, kept):
    good = made.keys() == kept.keys()
    for key in made if good else ():
        if not near(key, made[key], kept[key]):
            print(f"{name}: {key} differs")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Model(MLA_S, torch.float64)
    text = np.fromfile(TEXT, dtype=np.uint8).reshape(2, 2048)
    bases = [log_probabilities(model, row, Rounded(model)) for row in text]
    good = True
    for name in record.FORMATS:
        arrays = make(name, model, text, bases)
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
