#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files that hold our model runtime to Hugging Face transformers.

    python3 -m pip install torch==2.15.0 transformers==5.17.0   # the versions used
    python3 tests/golden/make_golden.py            # writes every case
    python3 tests/golden/make_golden.py --check    # compares with what is committed
    python3 tests/golden/make_golden.py CASE…      # only these

Each tiny case is a random checkpoint, saved by save_pretrained() and loaded again
by from_pretrained() on the CPU, so the files themselves are what is measured.
Weights come from NumPy's PCG64 with a seed fixed by the case's name and are equal
bit by bit on every machine; logits may differ in the last bits between CPUs,
which --check allows for. See README.md beside this file.
"""
import argparse
import filecmp
import hashlib
import json
import os
import shutil
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as hf_logging

import families

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "data")
TOKENS = 138  # two full blocks and a tail of 10
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def yarn(**more):
    """YaRN with ranges that matter within 150 positions, and a factor far from 1."""
    return {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 64, **more}


def plain(theta=10000.0):
    return {"rope_type": "default", "rope_theta": theta}


# family, dtype, then what differs from geometry(). The eps of 1e-2 in some of them is
# there to be noticed: transformers ignores it in the two norms inside the attention.
CASES = {
    "v3-bf16-dc512": ("v3", "BF16", dict(kv_lora_rank=512)),
    "v3-f32-half-qlora-eps-tied": ("v3", "F32", dict(q_lora_rank=40, rope_interleave=False,
                                                rms_norm_eps=1e-2, num_attention_heads=3,
                                                tie_word_embeddings=True, rope_parameters=plain(50000.0))),
    "v3-bf16-yarn-qlora-bias-sharded": ("v3", "BF16", dict(
        q_lora_rank=48, attention_bias=True, rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0))),
    "v3-f16-half-yarn-mscale": ("v3", "F16", dict(
        rope_interleave=False, rope_parameters=yarn(mscale=0.707, mscale_all_dim=1.2))),
    "v3-bf16-half-bias": ("v3", "BF16", dict(
        rope_interleave=False, attention_bias=True, rms_norm_eps=1e-5, v_head_dim=32)),
    "v3-f32-rope32-yarn": ("v3", "F32", dict(
        qk_rope_head_dim=32, kv_lora_rank=64, num_attention_heads=3, rope_parameters=yarn())),
    "v2-bf16-tied": ("v2", "BF16", dict(tie_word_embeddings=True, kv_lora_rank=192)),
    "v2-f32-yarn-qlora-bias-sharded": ("v2", "F32", dict(
        q_lora_rank=40, attention_bias=True, rms_norm_eps=1e-2, num_attention_heads=3,
        rope_parameters=yarn(mscale=0.707, mscale_all_dim=0.707))),
    "v2-f16-rope32-qlora": ("v2", "F16", dict(q_lora_rank=32, qk_rope_head_dim=32, num_hidden_layers=3)),
    "v2-bf16-published-config-sharded": ("v2", "BF16", dict(
        rope_parameters=yarn(mscale=0.707, mscale_all_dim=0.707))),
    **families.CASES,
}
SHARDED = {name: 140_000 for name in CASES if name.endswith("sharded")}  # bytes a shard
PUBLISHED = {"v2-bf16-published-config-sharded"}


def geometry():
    return dict(vocab_size=256, hidden_size=64, intermediate_size=40, num_hidden_layers=2,
                num_attention_heads=2, kv_lora_rank=128, q_lora_rank=None, qk_nope_head_dim=16,
                qk_rope_head_dim=64, v_head_dim=24, max_position_embeddings=512,
                rms_norm_eps=1e-6, rope_parameters=plain(), attention_bias=False,
                tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)


def make_config(family, switches):
    values = {**geometry(), **switches}
    if family not in ("v2", "v3") or "n_routed_experts" in switches:
        values["num_key_value_heads"] = values["num_attention_heads"]
        return families.MODELS[family][0](**values)
    if values["num_attention_heads"] == 3:
        values["hidden_size"] = 48  # a multiple, and small
    values["first_k_dense_replace"] = values["num_hidden_layers"]  # a dense MLP in every layer
    values["num_key_value_heads"] = values["num_attention_heads"]
    if family == "v3":
        values["n_group"] = values["topk_group"] = 1
    return families.MODELS[family][0](**values)


def random_weight(rng, name, shape, config):
    """Scales that make attention choose, logits lively, and every norm weight matter."""
    if name.endswith("layernorm.weight") or name.endswith("norm.weight"):
        return rng.uniform(0.5, 1.5, shape)
    if "router" in name or name.endswith("mlp.gate.weight"):
        return rng.normal(0.0, 1.5 / shape[1] ** 0.5, shape)
    if name.endswith(".bias"):
        return rng.normal(0.0, 0.3, shape)
    if name == "model.embed_tokens.weight":
        return rng.normal(0.0, 2.5 / shape[1] ** 0.5 if config.tie_word_embeddings else 1.0, shape)
    if "kv_a_proj_with_mqa" in name:
        weight = rng.normal(0.0, 1.0 / shape[1] ** 0.5, shape)
        weight[:config.kv_lora_rank] *= 0.05  # small latents: the eps of kv_a_layernorm is then visible
        return weight
    residual = 0.5 if config.tie_word_embeddings else 0.8  # in proportion to the embeddings
    gain = (2.5 if "lm_head" in name else 1.3 if ".q_" in name
            else residual if "o_proj" in name or "down_proj" in name else 1.0)
    return rng.normal(0.0, gain / shape[-1] ** 0.5, shape)


def seeded(name):
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")))


def fill(model, name, config):
    rng = seeded(name)
    with torch.no_grad():
        for key, value in sorted(model.named_parameters()):
            value.copy_(torch.from_numpy(random_weight(rng, key, tuple(value.shape), config).astype(np.float32)))
    families.fill_buffers(model, rng)


def publish_config(path):
    """Rewrites config.json as DeepSeek published theirs: rope_scaling and rope_theta."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    for key in ("head_dim", "qk_head_dim"):
        config.pop(key, None)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2, sort_keys=True)
        file.write("\n")


def run(directory, family, tokens, dtype):
    """Logits of the checkpoint in @directory, computed in @dtype: [n][vocab] float32."""
    model = families.MODELS[family][1].from_pretrained(directory, dtype=dtype).eval()
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None], use_cache=False).logits[0].float().contiguous()


def run_fp8(directory, family, tokens):
    """Logits of an FP8 checkpoint: its weights times their scales, in float32."""
    weights = families.quantise_checkpoint(directory)
    with tempfile.TemporaryDirectory() as plain:
        shutil.copyfile(os.path.join(directory, "config.json"), os.path.join(plain, "config.json"))
        with open(os.path.join(plain, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        del config["quantization_config"]
        with open(os.path.join(plain, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        save_file(weights, os.path.join(plain, "model.safetensors"), metadata={"format": "pt"})
        return run(plain, family, tokens, torch.float32)


def write_tiny(name, directory):
    family, dtype, switches = CASES[name]
    config = make_config(family, switches)
    model = families.MODELS[family][1](config)
    fill(model, name, config)
    model.to(DTYPES.get(dtype, torch.float32)).save_pretrained(directory, max_shard_size=SHARDED.get(name, "1GB"))
    generation = os.path.join(directory, "generation_config.json")
    if os.path.exists(generation):
        os.unlink(generation)
    if name in PUBLISHED:
        publish_config(os.path.join(directory, "config.json"))
    tokens = seeded(name + ":tokens").integers(0, 256, TOKENS)
    runs = run
    if "ngram_vocab_size_ratio" in switches:
        tokens[5::16] = families.END
        families.add_ngrams(directory, seeded(name + ":ngrams"))
        runs = lambda where, _, ids, precision: families.run_ngrams(where, ids, precision)
    logits = (run_fp8(directory, family, tokens) if dtype == "FP8"
              else runs(directory, family, tokens, torch.float32))
    golden = {"tokens": torch.from_numpy(tokens), "logits": logits}
    if dtype == "BF16":
        golden["logits_bf16"] = runs(directory, family, tokens, torch.bfloat16)
    if name.startswith("kimi"):
        families.publish_kimi(directory)
    save_file(golden, os.path.join(directory, "golden.safetensors"))


def write_mla_s(directory):
    """mla-s on 4,096 bytes of real text, two sequences of its trained context."""
    with open(os.path.join(DATA, "prompts", "golden.txt"), "rb") as file:
        text = np.frombuffer(file.read(), dtype=np.uint8).reshape(2, 2048)
    golden = {"tokens": torch.from_numpy(text.copy())}
    for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        logits = torch.stack([run(os.path.join(DATA, "mla-s"), "v3", row.astype(np.int64), dtype) for row in text])
        top = logits.topk(2, dim=-1)
        golden[f"argmax_{label}"] = top.indices[..., 0].to(torch.uint8).contiguous()
        golden[f"top_{label}"] = top.values[..., 0].contiguous()
        golden[f"second_{label}"] = top.values[..., 1].contiguous()
        golden[f"logsumexp_{label}"] = torch.logsumexp(logits, dim=-1)
        golden[f"target_logit_{label}"] = logits[:, :-1].gather(
            -1, torch.from_numpy(text[:, 1:].astype(np.int64))[..., None])[..., 0].contiguous()
        golden[f"last_logits_{label}"] = logits[:, -32:].contiguous()
    save_file(golden, os.path.join(directory, "golden.safetensors"))


def write_case(name, directory):
    os.makedirs(directory, exist_ok=True)
    if name == "mla-s":
        write_mla_s(directory)
    else:
        write_tiny(name, directory)


def describe(name, directory):
    golden = load_file(os.path.join(directory, "golden.safetensors"))
    size = sum(os.path.getsize(os.path.join(directory, file)) for file in os.listdir(directory))
    if name == "mla-s":
        agree = (golden["argmax_f32"] == golden["argmax_bf16"]).float().mean().item()
        bits = ((golden["logsumexp_f32"][:, :-1] - golden["target_logit_f32"]).mean() / np.log(2)).item()
        print(f"{name}: {size >> 10} KiB, bits per byte {bits:.4f}, argmax equal bf16/f32 {agree:.5f}")
        return
    logits = golden["logits"]
    top = logits.softmax(-1).amax(-1).mean()
    line = f"{name}: {size >> 10} KiB, logit std {logits.std():.2f}, mean top p {top:.3f}"
    if "logits_bf16" in golden:
        bf16 = golden["logits_bf16"]
        line += (f", bf16 relative error {((bf16 - logits).norm() / logits.norm()).item():.2e}"
                 f", argmax equal {(bf16.argmax(-1) == logits.argmax(-1)).float().mean():.4f}")
    print(line)


def same(name, made, kept):
    """True when @made agrees with @kept: weights and configs exactly, results to rounding."""
    names = sorted(file for file in os.listdir(made) if file != "README.md")
    if names != sorted(file for file in os.listdir(kept) if file != "README.md"):
        print(f"{name}: different files: {names} against {sorted(os.listdir(kept))}")
        return False
    good = True
    for file in names:
        a, b = os.path.join(made, file), os.path.join(kept, file)
        if file != "golden.safetensors":
            equal = filecmp.cmp(a, b, shallow=False)
        else:
            x, y = load_file(a), load_file(b)
            equal = x.keys() == y.keys() and all(close(key, x[key], y[key]) for key in x)
        if not equal:
            print(f"{name}: {file} differs")
        good &= equal
    return good


def close(key, x, y):
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if key == "tokens":
        return bool((x == y).all())
    if key.startswith("argmax"):
        return (x == y).float().mean().item() > (0.99 if "bf16" in key else 0.999)
    return ((x - y).norm() / y.norm()).item() < (2e-2 if "bf16" in key else 1e-5)


def install(made, kept):
    shutil.rmtree(kept, ignore_errors=True)
    os.makedirs(kept)
    for file in os.listdir(made):
        shutil.copyfile(os.path.join(made, file), os.path.join(kept, file))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    args = parser.parse_args()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cases = args.cases or [*CASES, "mla-s"]
    for name in cases:
        if name not in CASES and name != "mla-s":
            parser.error(f"no such case: {name}; there are: {', '.join([*CASES, 'mla-s'])}")
    good = True
    for name in cases:
        kept = os.path.join(HERE, name)
        with tempfile.TemporaryDirectory() as scratch:
            made = os.path.join(scratch, name)
            write_case(name, made)
            if args.check:
                good &= same(name, made, kept)
            else:
                install(made, kept)
        describe(name, kept)
    if args.check:
        print("golden files agree" if good else "golden files DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
