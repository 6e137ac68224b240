# SPDX-License-Identifier: Apache-2.0
"""The cases of make_golden.py with mixtures of experts, and of the families beyond DeepSeek.

Each case is (family, dtype, switches). Sizes are small and no two alike; every switch that a
family's gate has is on in one of them.
"""
import json
import os
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM,
                          Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM, LongcatFlashConfig, LongcatFlashForCausalLM,
                          MiniCPM3Config, MiniCPM3ForCausalLM)

MODELS = {"v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
          "v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
          "glm": (Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM),
          "longcat": (LongcatFlashConfig, LongcatFlashForCausalLM),
          "minicpm3": (MiniCPM3Config, MiniCPM3ForCausalLM)}

FP8_BLOCK = 128
FP8_MAX = 448.0


def experts(**more):
    return dict(moe_intermediate_size=24, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
                first_k_dense_replace=1, num_hidden_layers=3, norm_topk_prob=False, **more)


def rope(theta=10000.0, **more):
    return {"rope_type": more.pop("rope_type", "default"), "rope_theta": theta, **more}


LONGROPE = rope(rope_type="longrope", factor=4.0, original_max_position_embeddings=512,
                short_factor=[1.0 + 0.1 * j for j in range(16)], long_factor=[5.0] * 16)

END = 7  # the end token of the n-gram case: n-grams do not reach back over it

CASES = {
    "v2-moe-greedy-bf16": ("v2", "BF16", {
        **experts(topk_method="greedy", routed_scaling_factor=1.0), "n_shared_experts": 2}),
    "v2-moe-groups-f32": ("v2", "F32", {
        **experts(topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=4.0,
                  q_lora_rank=40), "n_routed_experts": 12, "num_experts_per_tok": 4}),
    "v3-moe-groups-f32": ("v3", "F32", {
        **experts(n_group=4, topk_group=2, routed_scaling_factor=2.5, q_lora_rank=40, rope_parameters=rope(
            rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
            original_max_position_embeddings=64)),
        "n_routed_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True}),
    "v3-moe-moonlight-bf16": ("v3", "BF16", {
        **experts(n_group=1, topk_group=1, routed_scaling_factor=2.446, rms_norm_eps=1e-5,
                  rope_parameters=rope(50000.0)), "n_shared_experts": 2, "norm_topk_prob": True}),
    "kimi-k2-published-config-f32": ("v3", "F32", {
        **experts(n_group=1, topk_group=1, routed_scaling_factor=2.827, q_lora_rank=40, rope_parameters=rope(
            50000.0, rope_type="yarn", factor=32.0, beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
            original_max_position_embeddings=64)), "norm_topk_prob": True}),
    "v3-moe-fp8": ("v3", "FP8", {
        **experts(n_group=2, topk_group=1, routed_scaling_factor=2.5, q_lora_rank=136), "hidden_size": 160,
        "intermediate_size": 136, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "norm_topk_prob": True, "num_hidden_layers": 2}),
    "glm-moe-bf16": ("glm", "BF16", {
        **experts(n_group=2, topk_group=1, routed_scaling_factor=1.8, q_lora_rank=40, rms_norm_eps=1e-2),
        "norm_topk_prob": True, "v_head_dim": 32, "qk_nope_head_dim": 24}),
    "longcat-f32": ("longcat", "F32", dict(
        num_layers=2, ffn_hidden_size=40, expert_ffn_hidden_size=24, moe_topk=3, n_routed_experts=6,
        zero_expert_num=3, routed_scaling_factor=3.0, q_lora_rank=40, rms_norm_eps=1e-5,
        rope_parameters=rope(1e7))),
    "longcat-bf16": ("longcat", "BF16", dict(
        num_layers=1, ffn_hidden_size=40, expert_ffn_hidden_size=24, moe_topk=2, n_routed_experts=4,
        zero_expert_num=2, routed_scaling_factor=6.0, q_lora_rank=40, rms_norm_eps=1e-5,
        rope_parameters=rope(1e7))),
    "longcat-lite-bf16": ("longcat", "BF16", dict(
        num_layers=1, ffn_hidden_size=40, expert_ffn_hidden_size=24, moe_topk=2, n_routed_experts=4,
        zero_expert_num=2, routed_scaling_factor=6.0, q_lora_rank=40, rms_norm_eps=1e-5, eos_token_id=END,
        ngram_vocab_size_ratio=3, emb_neighbor_num=3, emb_split_num=2,
        rope_parameters=rope(1e7, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                             mscale_all_dim=1.0, original_max_position_embeddings=64))),
    "minicpm3-bf16": ("minicpm3", "BF16", dict(
        q_lora_rank=40, kv_lora_rank=256, qk_rope_head_dim=32, scale_emb=12, scale_depth=1.4, dim_model_base=16,
        tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters=LONGROPE)),
}


class NgramEmbedding(torch.nn.Module):
    """LongCat-Flash-Lite's embeddings; transformers has no class for it. What the model's published
    modeling_longcat_ngram.py computes, written anew: table i of n-grams adds the projection of the row
    that the rolling hash of a token and the n - 1 before it names, and the sum is divided by the number
    of summands. Before an end token there is nothing: zeros stand there."""

    def __init__(self, config, words):
        super().__init__()
        self.vocabulary, self.splits = config.vocab_size, config.emb_split_num
        self.neighbours, self.words = config.emb_neighbor_num, words
        tables = self.splits * (self.neighbours - 1)
        rows = [int(config.ngram_vocab_size_ratio * config.vocab_size + 2 * i + 1) for i in range(tables)]
        self.embedders = torch.nn.ModuleList(torch.nn.Embedding(n, config.hidden_size // tables) for n in rows)
        self.post_projs = torch.nn.ModuleList(
            torch.nn.Linear(config.hidden_size // tables, config.hidden_size, bias=False) for _ in rows)

    def ids(self, tokens, table):
        n, rows = 2 + table // self.splits, self.embedders[table].num_embeddings
        result = []
        for t in range(len(tokens)):
            total = int(tokens[t])
            for d in range(1, n):
                if t < d or END in tokens[t - d:t]:
                    break
                total += int(tokens[t - d]) * pow(self.vocabulary, d, rows)
            result.append(total % rows)
        return torch.tensor(result)

    def forward(self, tokens):
        x = self.words(torch.as_tensor(tokens))
        for i, (table, projection) in enumerate(zip(self.embedders, self.post_projs)):
            x = x + projection(table(self.ids(tokens, i)))
        return x / (1 + len(self.embedders))


def add_ngrams(directory, rng):
    """Adds the tables to a saved LongCat checkpoint, which becomes a LongCat-Flash-Lite."""
    path = os.path.join(directory, "model.safetensors")
    tensors = load_file(path)
    model = LongcatFlashForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ngram = NgramEmbedding(model.config, model.model.embed_tokens)
    for key, value in sorted(ngram.named_parameters()):
        if not key.startswith("words"):
            gain = 2.0 if "embedders" in key else 2.0 / value.shape[1] ** 0.5
            random = rng.normal(0.0, gain, tuple(value.shape)).astype("float32")
            tensors[f"model.ngram_embeddings.{key}"] = torch.from_numpy(random).bfloat16()
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(directory, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.update(model_type="longcat_flash_ngram", architectures=["LongcatFlashNgramForCausalLM"])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2, sort_keys=True)
        file.write("\n")


def run_ngrams(directory, tokens, dtype):
    """Logits of a LongCat-Flash-Lite: transformers' LongCat on embeddings of our own."""
    tensors = load_file(os.path.join(directory, "model.safetensors"))
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        values = json.load(file)
    values.update(model_type="longcat_flash", architectures=["LongcatFlashForCausalLM"])
    prefix = "model.ngram_embeddings."
    with tempfile.TemporaryDirectory() as plain:
        save_file({k: v for k, v in tensors.items() if not k.startswith(prefix)},
                  os.path.join(plain, "model.safetensors"), metadata={"format": "pt"})
        with open(os.path.join(plain, "config.json"), "w", encoding="utf-8") as file:
            json.dump(values, file)
        model = LongcatFlashForCausalLM.from_pretrained(plain, dtype=dtype).eval()
    ngram = NgramEmbedding(model.config, model.model.embed_tokens).to(dtype)
    loaded = ngram.load_state_dict({k[len(prefix):]: v.to(dtype) for k, v in tensors.items()
                                    if k.startswith(prefix)}, strict=False)
    assert loaded.missing_keys == ["words.weight"] and not loaded.unexpected_keys, loaded
    with torch.no_grad():
        embedded = ngram(list(tokens))[None]
        return model(inputs_embeds=embedded, use_cache=False).logits[0].float().contiguous()


def fill_buffers(model, rng):
    """The corrections of the gates are buffers: large enough to change the choice."""
    with torch.no_grad():
        for key, value in sorted(model.named_buffers()):
            if key.endswith("e_score_correction_bias"):
                value.copy_(torch.from_numpy(rng.normal(0.0, 0.15, tuple(value.shape)).astype("float32")))


def publish_kimi(directory):
    """Rewrites config.json to what Moonshot publishes: its own model_type, rope_scaling, names of the gate."""
    path = os.path.join(directory, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    scaling["type"] = scaling.pop("rope_type")
    config.update(rope_scaling=scaling, model_type="kimi_k2", scoring_func="sigmoid", topk_method="noaux_tc",
                  moe_layer_freq=1, torch_dtype=config.pop("dtype"))
    for key in ("head_dim", "qk_head_dim", "rope_interleave"):
        config.pop(key, None)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2, sort_keys=True)
        file.write("\n")


def to_fp8(weight):
    """(codes, scales) of DeepSeek's weights: a block of 128 x 128 has absmax / 448 as its scale."""
    rows, columns = (-(-n // FP8_BLOCK) for n in weight.shape)
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, columns)
    for i in range(rows):
        for j in range(columns):
            at = (slice(i * FP8_BLOCK, (i + 1) * FP8_BLOCK), slice(j * FP8_BLOCK, (j + 1) * FP8_BLOCK))
            scales[i, j] = weight[at].abs().max() / FP8_MAX
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
    return codes, scales


def from_fp8(codes, scales):
    """What weight_dequant of DeepSeek's inference code gives, in float32."""
    wide = scales.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return codes.float() * wide[:codes.shape[0], :codes.shape[1]]


def quantise_checkpoint(directory):
    """Makes the saved float32 checkpoint an FP8 one; returns its weights as they are read back."""
    path = os.path.join(directory, "model.safetensors")
    stored, read = {}, {}
    for name, value in load_file(path).items():
        linear = name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")
        if linear:
            codes, scales = to_fp8(value)
            stored[name], stored[name + "_scale_inv"] = codes, scales
            read[name] = from_fp8(codes, scales)
        else:
            keep = value if name.endswith("e_score_correction_bias") else value.bfloat16()
            stored[name], read[name] = keep, keep.float()
    save_file(stored, path, metadata={"format": "pt"})
    path = os.path.join(directory, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                     "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2, sort_keys=True)
        file.write("\n")
    return read
