#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the packed cache's constants for a small dense DeepSeek-V2/V3 checkpoint.

    tools/make_constants.py --model tests/data/mla-s --text calibration.txt

Writes quantmla.json and quantmla.safetensors beside the checkpoint (or to --output). Needs
NumPy and PyTorch, no transformers. The recipe, a layer at a time:

  1. sensitivity H of content and of the RoPE key before its rotation, by Rademacher probes of
     the attention's output, one probe a sequence;
  2. means of both;
  3. content rotated by the normalised Hadamard matrix, where d_c is a power of two;
  4. H in cache coordinates + 1e-3 mean(diag) I = A^T D A: the factors of feedback rounding.

The text is cut into bytes: a token is a byte, so this is for byte-level models.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from quantmla import calibrate, calibrate_io, record  # noqa: E402
from quantmla.model import Model  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, metavar="DIR", help="Hugging Face checkpoint")
    parser.add_argument("--text", required=True, metavar="FILE", help="calibration text, read as bytes")
    parser.add_argument("--output", metavar="DIR", help="default: the checkpoint's folder")
    parser.add_argument("--sequences", type=int, default=12, metavar="N", help="default 12")
    parser.add_argument("--length", type=int, default=2048, metavar="BYTES", help="of a sequence, default 2048")
    parser.add_argument("--seed", type=int, default=1, help="of the probes' signs, default 1")
    args = parser.parse_args()
    args.output = args.output or args.model
    if not os.path.isdir(args.output):
        parser.error(f"{args.output} is no folder: make it, or give another --output")
    if args.sequences < 1 or args.length < 2:
        parser.error("--sequences must be at least 1 and --length at least 2")
    return args


def main():
    args = parse()
    torch.set_num_threads(1)  # one order of summation: the same files on every run
    model = Model(args.model)
    if model.weight("model.embed_tokens.weight").shape[0] != 256:
        sys.exit(f"{args.model}: vocabulary is not 256: this script calibrates byte-level models only")
    text = np.fromfile(args.text, dtype=np.uint8)
    statistics = calibrate.collect(model, calibrate.sequences(text, args.sequences, args.length), args.seed)
    d_c = model.geometry.content
    rotation = record.hadamard(d_c) if d_c & (d_c - 1) == 0 else None
    layers = [calibrate.layer_constants(s, rotation) for s in statistics]
    figures = [calibrate.describe(s, c) for s, c in zip(statistics, layers)]
    calibrate_io.write(args.output, args.model, "probe-hadamard-mean-feedback",
                    "identity" if rotation is None else "hadamard", layers, figures,
                    f"make_constants.py --sequences {args.sequences} --length {args.length} --seed {args.seed}")
    for i, figure in enumerate(figures):
        print(f"layer {i}: " + ", ".join(f"{key} {value}" for key, value in figure.items()))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"make_constants: {error}")
