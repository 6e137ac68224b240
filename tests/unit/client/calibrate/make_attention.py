#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes attention_golden.safetensors: outputs of attention by Hugging Face transformers.

    python3 tests/unit/client/calibrate/make_attention.py

Reads the tiny checkpoints of tests/golden (versions of torch and transformers: see
make_golden.py there) in float32 and keeps, for every attention sub-layer, the output
after o_proj at a few tokens of one sequence: "<case>/<sub-layer>", [rows][hidden].
"""
import os
import sys

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "..", "golden")
sys.path.insert(0, GOLDEN)

import families  # noqa: E402
import make_golden  # noqa: E402

# FP8 weights and embeddings of n-grams have tests of their own; attention sees neither. The
# last has a config.json as Moonshot publishes it, which transformers does not take.
LEFT_OUT = {"v3-moe-fp8", "longcat-lite-bf16", "kimi-k2-published-config-f32"}
LENGTH = 150
ROWS = [0, 1, 5, 63, 64, 127, 128, 149]  # test_attention_golden.c has the same


def outputs_of(name):
    family = make_golden.CASES[name][0]
    model = families.MODELS[family][1].from_pretrained(os.path.join(GOLDEN, name), dtype=torch.float32,
                                                       attn_implementation="eager").eval()
    outputs = []

    def keep(module, inputs, output):
        outputs.append(output[0][0, ROWS].contiguous())

    for module in model.modules():
        if type(module).__name__.endswith(("Attention", "MLA")):
            module.register_forward_hook(keep)
    with torch.no_grad():
        model(torch.tensor([[(i * 37 + 11) % 97 for i in range(LENGTH)]]), use_cache=False)
    return {f"{name}/{i}": output for i, output in enumerate(outputs)}


def main():
    tensors = {}
    for name in sorted(set(make_golden.CASES) - LEFT_OUT):
        tensors.update(outputs_of(name))
    save_file(tensors, os.path.join(HERE, "attention_golden.safetensors"))
    print(f"{len(tensors)} sub-layers")


if __name__ == "__main__":
    main()
