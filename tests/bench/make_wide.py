#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint with DeepSeek-V3's widths and few layers, to measure what a layer costs.

    python3 tests/bench/make_wide.py DIR [--experts 16] [--fp8]

One dense layer and one with experts; real models have 256 of them, and time and memory grow in
proportion. Weights are random (FP8 codes, or BF16). NumPy only. 16 experts take about 1.6 GB in FP8.
"""
import argparse
import json
import os
import struct

import numpy as np

BLOCK = 128
HIDDEN, HEADS, Q_RANK, CONTENT, ROPE, NOPE, VALUE = 7168, 128, 1536, 512, 64, 128, 128
DENSE, EXPERT, VOCAB = 18432, 2048, 256


def tensors(experts):
    """(name, shape, linear) in file order."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN), False
    yield "lm_head.weight", (VOCAB, HIDDEN), False
    yield "model.norm.weight", (HIDDEN,), False
    for i in range(2):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{norm}.weight", (HIDDEN,), False
        attention = layer + "self_attn."
        yield attention + "q_a_proj.weight", (Q_RANK, HIDDEN), True
        yield attention + "q_a_layernorm.weight", (Q_RANK,), False
        yield attention + "q_b_proj.weight", (HEADS * (NOPE + ROPE), Q_RANK), True
        yield attention + "kv_a_proj_with_mqa.weight", (CONTENT + ROPE, HIDDEN), True
        yield attention + "kv_a_layernorm.weight", (CONTENT,), False
        yield attention + "kv_b_proj.weight", (HEADS * (NOPE + VALUE), CONTENT), True
        yield attention + "o_proj.weight", (HIDDEN, HEADS * VALUE), True
        mlps = [(layer + "mlp.", DENSE)] if i == 0 else (
            [(f"{layer}mlp.experts.{e}.", EXPERT) for e in range(experts)]
            + [(layer + "mlp.shared_experts.", EXPERT)])
        if i == 1:
            yield layer + "mlp.gate.weight", (experts, HIDDEN), False
            yield layer + "mlp.gate.e_score_correction_bias", (experts,), False
        for prefix, width in mlps:
            for name, shape in (("gate_proj", (width, HIDDEN)), ("up_proj", (width, HIDDEN)),
                                ("down_proj", (HIDDEN, width))):
                yield f"{prefix}{name}.weight", shape, True


def bf16(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def data_of(rng, name, shape, fp8):
    """The tensor's bytes."""
    if len(shape) == 1:
        return bf16(np.zeros(shape) if "bias" in name else np.ones(shape)).tobytes()
    count = shape[0] * shape[1]
    if fp8:
        codes = rng.integers(0, 256, count, dtype=np.uint8)
        codes[(codes & 0x7f) >= 0x60] &= 0xbf  # none large, none NaN
        return codes.tobytes()
    part = bf16(rng.standard_normal(1 << 20) / shape[1] ** 0.5)
    return np.resize(part, count).tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--fp8", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.directory, exist_ok=True)
    entries, header, offset = [], {}, 0
    for name, shape, linear in tensors(args.experts):
        fp8 = linear and args.fp8
        parts = [(name, shape, "F8_E4M3" if fp8 else "BF16", int(np.prod(shape)) * (1 if fp8 else 2))]
        if fp8:
            blocks = tuple(-(-n // BLOCK) for n in shape)
            parts.append((name + "_scale_inv", blocks, "F32", int(np.prod(blocks)) * 4))
        for part in parts:
            header[part[0]] = {"dtype": part[2], "shape": list(part[1]), "data_offsets": [offset, offset + part[3]]}
            entries.append(part)
            offset += part[3]
    text = json.dumps(header).encode()
    rng = np.random.default_rng(1)
    with open(os.path.join(args.directory, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape, dtype, _ in entries:
            if dtype == "F32":
                file.write(np.full(shape, 0.02 / 8, np.float32).tobytes())
            else:
                file.write(data_of(rng, name, shape, dtype == "F8_E4M3"))
    config = dict(model_type="deepseek_v3", vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=DENSE,
                  num_hidden_layers=2, num_attention_heads=HEADS, kv_lora_rank=CONTENT, q_lora_rank=Q_RANK,
                  qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE, max_position_embeddings=4096,
                  n_routed_experts=args.experts, num_experts_per_tok=8, moe_intermediate_size=EXPERT,
                  n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=2.5)
    if args.fp8:
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    with open(os.path.join(args.directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)


if __name__ == "__main__":
    main()
