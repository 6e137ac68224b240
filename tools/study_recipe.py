#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each part of the calibrator's default method is worth, on a small byte-level model.

    tools/study_recipe.py --model DIR --calibrate text.txt --text validation.txt --form c2r4 [--only NAME …]

Learns every variant from the calibration text alone, then measures it against the BF16 cache on
whole sequences spread over the other text: KL and change of loss with their standard errors by
bootstrap over sequences, equal greedy bytes. Rows of a token's own block are packed too, unless
--block. Python on the CPU: minutes a layer and variant.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from quantmla import caches, calibrate, learn, record  # noqa: E402
from quantmla.model import Model, Rounded  # noqa: E402

VARIANTS = {
    "rotation only: Hadamard, two sensitivities": {"steps": 0, "cross": False, "pairs": False, "scaled": False},
    "Hadamard, cross feedback": {"steps": 0, "pairs": False, "scaled": False},
    "Hadamard, cross feedback, pairs": {"steps": 0, "scaled": False},
    "learned, without cross feedback": {"cross": False},
    "learned, without pairs": {"pairs": False},
    "learned, half the steps": {"steps": 100},
    "learned": {},
}


class Everything(caches.Learned):
    """No rows of a token's own block beside the packed ones."""

    def content(self, layer, latent):
        far, _ = super().content(layer, latent)
        return far, far

    def key(self, layer, key):
        far, _ = super().key(layer, key)
        return far, far


def log_probabilities(model, tokens, cache):
    with torch.no_grad():
        return model.forward(tokens, cache).log_softmax(-1).double()


def compare(base, other, tokens):
    """Means over positions with a next byte: KL in 1e-3 nats, loss in 1e-3 bits, equal greedy bytes."""
    target = torch.from_numpy(tokens[1:].astype(np.int64))[:, None]
    base, other = base[:-1], other[:-1]
    kl = (base.exp() * (base - other)).sum(-1).mean().item()
    bits = (base.gather(1, target) - other.gather(1, target)).mean().item() / np.log(2)
    return 1e3 * kl, 1e3 * bits, (base.argmax(-1) == other.argmax(-1)).double().mean().item()


def bootstrap(values, seed=1):
    """Standard error of the mean over sequences."""
    values = np.array(values)
    draws = np.random.default_rng(seed).integers(0, len(values), (2000, len(values)))
    return values[draws].mean(1).std(0)


def measure(model, args, texts, bases, found):
    constants, *transforms = zip(*found)
    kind = caches.Learned if args.block else Everything
    cache = kind(args.form, list(constants), list(zip(*transforms)))
    rows = [compare(base, log_probabilities(model, tokens, cache), tokens) for tokens, base in zip(texts, bases)]
    return np.mean(rows, axis=0), bootstrap(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, metavar="DIR", help="Hugging Face checkpoint, not fused")
    parser.add_argument("--calibrate", required=True, metavar="FILE", help="text that constants are learned from")
    parser.add_argument("--text", required=True, metavar="FILE", help="text that they are measured on")
    parser.add_argument("--form", choices=sorted(record.FORMATS), default="c4r4")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=VARIANTS, help="these variants, default all")
    parser.add_argument("--block", action="store_true", help="BF16 rows of a token's own block of 64")
    parser.add_argument("--sequences", type=int, default=4, metavar="N", help="to measure on, default 4")
    parser.add_argument("--calibration-sequences", type=int, default=12, metavar="N", help="default 12")
    parser.add_argument("--length", type=int, default=2048, metavar="BYTES", help="of a sequence, default 2048")
    args = parser.parse_args()
    model = Model(args.model)
    texts, learned_from = (calibrate.sequences(np.fromfile(path, dtype=np.uint8), count, args.length)
                           for path, count in ((args.text, args.sequences),
                                               (args.calibrate, args.calibration_sequences)))
    statistics = calibrate.collect(model, learned_from)
    bases = [log_probabilities(model, tokens, Rounded(model)) for tokens in texts]
    start = record.hadamard(model.geometry.content)
    print("| variant | KL, 1e-3 nats | Δ, 1e-3 bits per byte | top-1 |\n|---|---|---|---|", flush=True)
    for name in args.only or VARIANTS:
        found = [learn.learn(s, model.geometry, record.FORMATS[args.form][0], start, **VARIANTS[name])
                 for s in statistics]
        mean, error = measure(model, args, texts, bases, found)
        print(f"| {name} | {mean[0]:.3f} ± {error[0]:.3f} | {mean[1]:.2f} ± {error[1]:.2f} | "
              f"{mean[2]:.4f} ± {error[2]:.4f} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"study_recipe: {error}")
