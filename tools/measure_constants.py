#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a packed cache costs a small byte-level model, in PyTorch on the CPU.

    tools/measure_constants.py --model tests/data/mla-s --text validation.txt --sequences 8
    tools/measure_constants.py --model tests/data/mla-s --prompt prompt.txt --continue 256

With --text: changes against the BF16 cache, averaged over the positions of whole sequences
spread over the text. With --prompt: the continuation that the BF16 cache gives greedily, then
the share of greedy next bytes that are equal when both read that text. Everything by the cache
rule: packed pages of earlier 64-token blocks, BF16 rows of the token's own block.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from quantmla import caches, calibrate, calibrate_io, record  # noqa: E402
from quantmla.model import Decoder, Model, Rounded  # noqa: E402


def methods(model, args):
    """name → (bytes a token and layer, cache), those that --only names."""
    table = all_methods(model, args.constants or args.model)
    return {name: method for name, method in table.items() if not args.only or name in args.only}


def all_methods(model, directory):
    g = model.geometry
    _, constants, rotation = calibrate_io.read(directory)
    none = [{}] * g.layers
    had = record.hadamard(g.content)
    no_mean = [{k: v for k, v in layer.items() if not k.endswith("_mean")} for layer in constants]
    no_feedback = [{k: v for k, v in layer.items() if k.endswith("_mean")} for layer in constants]
    size = lambda bits: g.content * bits // 8 + g.rope // 2 + 4  # noqa: E731
    paper = g.content // 2 + g.rope // 2 + 32
    return {
        "paper's quantiser C4R4 (RTN)": (paper, caches.Paper(model)),
        "paper's quantiser C4R4, Hadamard": (paper, caches.Paper(model, rotation=had)),
        "C4R4, no constants": (size(4), caches.Packed("c4r4", none)),
        "C4R4, Hadamard only": (size(4), caches.Packed("c4r4", none, had)),
        "C4R4, calibrated, without means": (size(4), caches.Packed("c4r4", no_mean, rotation)),
        "C4R4, calibrated, without feedback": (size(4), caches.Packed("c4r4", no_feedback, rotation)),
        "C4R4, calibrated": (size(4), caches.Packed("c4r4", constants, rotation)),
        "C2R4, Hadamard only": (size(2), caches.Packed("c2r4", none, had)),
        "C2R4, calibrated": (size(2), caches.Packed("c2r4", constants, rotation)),
    }


def log_probabilities(model, tokens, cache):
    with torch.no_grad():
        return model.forward(tokens, cache).log_softmax(-1).double()


def compare(base, other, tokens):
    """Sums over the positions with a next byte: loss difference in bits, KL, equal greedy bytes."""
    target = torch.from_numpy(tokens[1:].astype(np.int64))[:, None]
    bits = (base[:-1].gather(1, target) - other[:-1].gather(1, target)).sum().item() / np.log(2)
    kl = (base.exp() * (base - other)).sum(-1)[:-1].sum().item()
    return np.array([bits, kl, (base.argmax(-1) == other.argmax(-1))[:-1].sum().item(), len(tokens) - 1])


def measure_text(model, args):
    texts = calibrate.sequences(np.fromfile(args.text, dtype=np.uint8), args.sequences, args.length)
    table = methods(model, args)
    sums = {name: np.zeros(4) for name in table}
    nats, exact = 0.0, np.zeros(4)
    for tokens in texts:
        base = log_probabilities(model, tokens, Rounded(model))
        exact += compare(log_probabilities(model, tokens, None), base, tokens)
        nats -= base[:-1].gather(1, torch.from_numpy(tokens[1:].astype(np.int64))[:, None]).sum().item()
        for name, (_, cache) in table.items():
            sums[name] += compare(base, log_probabilities(model, tokens, cache), tokens)
    count = exact[3]
    print(f"{len(texts)} sequences of {args.length}; BF16 cache: {nats / count / np.log(2):.5f} bits per byte\n")
    print("| cache | bytes/token/layer | Δ mbpb | KL, 1e-3 nats | top-1 |\n|---|---|---|---|---|")
    size = 2 * (model.geometry.content + model.geometry.rope)
    rows = [("BF16, against float32", size, exact)] + [(name, table[name][0], sums[name]) for name in table]
    for name, size, total in rows:
        bits, kl, equal, _ = total / count
        print(f"| {name} | {size} | {1e3 * bits:.2f} | {1e3 * kl:.3f} | {equal:.4f} |")


def choose(logits, args, generator):
    """The next byte: greedy at temperature 0, otherwise drawn from the top-p part."""
    if args.temperature == 0:
        return int(logits.argmax())
    p, order = (logits.double() / args.temperature).softmax(-1).sort(descending=True)
    p = torch.where(p.cumsum(0) - p < args.top_p, p, 0.0)
    return int(order[torch.multinomial(p, 1, generator=generator)])


def continuation(model, prompt, args):
    """The prompt and what the BF16 cache makes of it."""
    generator = torch.Generator().manual_seed(args.seed)
    decoder, tokens = Decoder(model), list(prompt)
    with torch.no_grad():
        logits = decoder.read(prompt)[-1]
        for _ in range(args.count):
            tokens.append(choose(logits, args, generator))
            logits = decoder.read(tokens[-1:])[-1]
    return np.array(tokens, dtype=np.uint8)


def measure_prompts(model, args):
    table = methods(model, args)
    for path in args.prompt:
        prompt = np.fromfile(path, dtype=np.uint8)
        tokens = continuation(model, prompt, args)
        print(f"{os.path.basename(path)}: {len(prompt)} bytes, continued by {args.count}:\n"
              f"{tokens[len(prompt):].tobytes().decode('utf-8', 'replace')!r}")
        positions = slice(len(prompt) - 1, len(tokens) - 1)
        base = log_probabilities(model, tokens, Rounded(model)).argmax(-1)[positions]
        for name, (_, cache) in table.items():
            equal = (log_probabilities(model, tokens, cache).argmax(-1)[positions] == base).double().mean().item()
            print(f"  {name}: {equal:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, metavar="DIR", help="Hugging Face checkpoint")
    parser.add_argument("--constants", metavar="DIR", help="where quantmla.json is, default the checkpoint's folder")
    parser.add_argument("--text", metavar="FILE", help="measure on sequences of this text")
    parser.add_argument("--sequences", type=int, default=8, metavar="N")
    parser.add_argument("--length", type=int, default=2048, metavar="BYTES")
    parser.add_argument("--prompt", nargs="+", metavar="FILE", default=[], help="measure on continuations of these")
    parser.add_argument("--continue", dest="count", type=int, default=256, metavar="N", help="bytes, default 256")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these rows of the table, default all")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the continuation, default 0: greedy")
    parser.add_argument("--top-p", type=float, default=1.0, help="default 1")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    args = parser.parse_args()
    if not args.text and not args.prompt:
        parser.error("give --text or --prompt")
    model = Model(args.model)
    if args.text:
        measure_text(model, args)
    if args.prompt:
        measure_prompts(model, args)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"measure_constants: {error}")
