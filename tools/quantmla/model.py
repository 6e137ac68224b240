# SPDX-License-Identifier: Apache-2.0
"""A plain forward of DeepSeek-V2/V3 models with dense MLPs, in PyTorch, from the checkpoint's
own files. The cache can be replaced: see Cache and `forward`."""
import json
import math
import os

import numpy as np
import torch

from . import tensors

LATENT_EPS = 1e-6  # kv_a_layernorm and q_a_layernorm, whatever rms_norm_eps says


def _mscale(factor, mscale):
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class Geometry:
    """What config.json says, in the words of this project."""

    def __init__(self, config):
        self.family = config["model_type"]
        if self.family not in ("deepseek_v2", "deepseek_v3"):
            raise ValueError(f"model_type {self.family} is not supported: deepseek_v2 or deepseek_v3")
        self.layers, self.hidden = config["num_hidden_layers"], config["hidden_size"]
        if config.get("first_k_dense_replace", 0) < self.layers:
            raise ValueError("a layer with experts: only dense MLPs are supported")
        self.heads, self.content = config["num_attention_heads"], config["kv_lora_rank"]
        self.rope, self.nope = config["qk_rope_head_dim"], config["qk_nope_head_dim"]
        self.value, self.q_lora = config["v_head_dim"], config.get("q_lora_rank")
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.tied = config.get("tie_word_embeddings", False)
        self.interleaved = self.family == "deepseek_v2" or config.get("rope_interleave", True)
        self._rope(config)

    def _rope(self, config):
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
        kind = rope.get("rope_type", rope.get("type", "default"))
        self.inv_freq = theta ** (-torch.arange(0, self.rope, 2, dtype=torch.float64) / self.rope)
        self.amplitude, self.scale = 1.0, (self.nope + self.rope) ** -0.5
        if kind == "default":
            return
        if kind != "yarn":
            raise ValueError(f"rope_type {kind} is not supported: default or yarn")
        factor = rope["factor"]
        original = rope.get("original_max_position_embeddings", config["max_position_embeddings"])
        self.inv_freq = self._yarn(rope, theta, factor, original)
        one, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
        self.amplitude = (_mscale(factor, one) / _mscale(factor, all_dim) if one and all_dim else _mscale(factor, 1.0))
        if all_dim:
            self.scale *= _mscale(factor, all_dim) ** 2

    def _yarn(self, rope, theta, factor, original):
        def dimension(rotations):
            return self.rope * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(dimension(rope.get("beta_fast") or 32)), 0)
        high = min(math.ceil(dimension(rope.get("beta_slow") or 1)), self.rope - 1)
        ramp = (torch.arange(self.rope // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)
        ramp = ramp.clamp(0, 1)
        return self.inv_freq / factor * ramp + self.inv_freq * (1 - ramp)


class Exact:
    """A cache that changes nothing."""

    def content(self, layer, latent):
        return latent, latent

    def key(self, layer, key):
        return key, key


class Rounded(Exact):
    """The BF16 cache: rows are rounded, the latent with its norm weight, the key after rotation."""

    def __init__(self, model):
        self.model = model

    def content(self, layer, latent):
        gamma = self.model.layer(layer, "self_attn.kv_a_layernorm.weight")
        row = (latent * gamma).to(torch.bfloat16).to(latent.dtype) / gamma
        return row, row

    def key(self, layer, key, start=0):
        turned = self.model.rotate(key, start=start).to(torch.bfloat16).to(key.dtype)
        row = self.model.rotate(turned, back=True, start=start)
        return row, row


class Model:
    """Weights in one dtype on the CPU. A latent is u, the weightless RMSNorm of kv_a's first
    columns; a key is the shared RoPE key before rotation."""

    def __init__(self, directory, dtype=torch.float32):
        path = os.path.join(directory, "config.json")
        with open(path, encoding="utf-8") as file:
            try:
                self.geometry = Geometry(json.load(file))
            except KeyError as error:
                raise ValueError(f"{path} has no {error}: is it a DeepSeek-V2 or V3 model?") from error
        self.directory = directory
        self.dtype = dtype
        self.weights = {name: torch.from_numpy(np.array(array)).to(dtype)
                        for name, array in tensors.read_checkpoint(directory).items()}

    def weight(self, name):
        if name not in self.weights:
            raise ValueError(f"{self.directory}: the checkpoint has no tensor {name}")
        return self.weights[name]

    def layer(self, i, name):
        return self.weight(f"model.layers.{i}.{name}")

    def linear(self, i, name, x):
        bias = self.weights.get(f"model.layers.{i}.{name}.bias")
        return torch.nn.functional.linear(x, self.layer(i, name + ".weight"), bias)

    @staticmethod
    def norm(x, weight, eps):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return y if weight is None else y * weight

    def rotate(self, x, back=False, start=0):
        """Turns [..., n, d_r] by each row's position, in the checkpoint's own order of pairs."""
        g = self.geometry
        angle = torch.arange(start, start + x.shape[-2], dtype=torch.float64)[:, None] * g.inv_freq
        cos, sin = angle.cos().to(x.dtype), (-angle if back else angle).sin().to(x.dtype)
        if g.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def queries(self, i, x, start=0):
        """[H][n][d_nope] and, rotated from position @start on, [H][n][d_r]."""
        g = self.geometry
        if g.q_lora is None:
            q = self.linear(i, "self_attn.q_proj", x)
        else:
            a = self.linear(i, "self_attn.q_a_proj", x)
            q = self.norm(a, self.layer(i, "self_attn.q_a_layernorm.weight"), LATENT_EPS)
            q = self.linear(i, "self_attn.q_b_proj", q)
        q = q.view(x.shape[0], g.heads, g.nope + g.rope).transpose(0, 1)
        return q[..., :g.nope], self.rotate(q[..., g.nope:], start=start)

    def latents(self, i, x):
        """u [n][d_c] and the key before rotation [n][d_r]."""
        a = self.linear(i, "self_attn.kv_a_proj_with_mqa", x)
        return self.norm(a[:, :self.geometry.content], None, LATENT_EPS), a[:, self.geometry.content:]

    def expand(self, i, latent, key, start=0):
        """What a cached row stands for: keys [H][n][d_nope], rotated keys [n][d_r], values [H][n][d_v]."""
        g = self.geometry
        c = latent * self.layer(i, "self_attn.kv_a_layernorm.weight")
        kv = self.linear(i, "self_attn.kv_b_proj", c).view(-1, g.heads, g.nope + g.value).transpose(0, 1)
        return kv[..., :g.nope], self.rotate(key, start=start), kv[..., g.nope:]

    def scores(self, queries, keys, rotated):
        g = self.geometry
        return g.scale * (queries[0] @ keys.transpose(1, 2) + g.amplitude ** 2 * (queries[1] @ rotated.T))

    def project(self, i, o):
        """o_proj of [H][n][d_v]."""
        return self.linear(i, "self_attn.o_proj", o.transpose(0, 1).reshape(o.shape[1], -1))

    def attend(self, i, queries, far, near=None, block=64):
        """Post-o_proj output [n][hidden]. @far, @near: (latent, key) rows as tokens of later
        blocks and of their own block see them (the cache rule)."""
        index = torch.arange(far[0].shape[0])
        keys, rotated, v = self.expand(i, *far)
        s, own = self.scores(queries, keys, rotated), None
        if near is not None:
            keys, rotated, v_near = self.expand(i, *near)
            own = (index[:, None] // block) == (index[None] // block)
            s = torch.where(own, self.scores(queries, keys, rotated), s)
        p = s.masked_fill(index[:, None] < index[None], -math.inf).softmax(-1)
        return self.project(i, p @ v if own is None else (p * ~own) @ v + (p * own) @ v_near)

    def attention(self, i, x, cache):
        latent, key = self.latents(i, x)
        far_k, near_k = cache.key(i, key)
        far_c, near_c = cache.content(i, latent)
        near = None if far_c is near_c and far_k is near_k else (near_c, near_k)
        return self.attend(i, self.queries(i, x), (far_c, far_k), near)

    def mlp(self, i, x):
        gate = torch.nn.functional.silu(self.linear(i, "mlp.gate_proj", x))
        return self.linear(i, "mlp.down_proj", gate * self.linear(i, "mlp.up_proj", x))

    def logits(self, h):
        g = self.geometry
        head = self.weight("model.embed_tokens.weight" if g.tied else "lm_head.weight")
        return self.norm(h, self.weight("model.norm.weight"), g.eps) @ head.T

    def run(self, tokens, attention):
        """Logits [n][vocab] with @attention(layer, normed input) as each layer's attention."""
        g = self.geometry
        h = self.weight("model.embed_tokens.weight")[torch.from_numpy(np.array(tokens, dtype=np.int64))]
        for i in range(g.layers):
            h = h + attention(i, self.norm(h, self.layer(i, "input_layernorm.weight"), g.eps))
            h = h + self.mlp(i, self.norm(h, self.layer(i, "post_attention_layernorm.weight"), g.eps))
        return self.logits(h)

    def forward(self, tokens, cache=None, visit=None):
        """Logits [n][vocab] of a whole text. @visit(layer, x) sees each attention's normed input."""
        cache = cache or Exact()

        def attention(i, x):
            if visit is not None:
                visit(i, x)
            return self.attention(i, x, cache)

        return self.run(tokens, attention)


class Decoder:
    """Reads a text piece by piece with the BF16 cache; an expanded copy of it is kept."""

    def __init__(self, model):
        self.model, self.cache, self.length = model, Rounded(model), 0
        self.state = [None] * model.geometry.layers

    def _attention(self, i, x):
        model = self.model
        latent, key = model.latents(i, x)
        new = model.expand(i, self.cache.content(i, latent)[1], self.cache.key(i, key, self.length)[1], self.length)
        old = self.state[i]
        keys, rotated, values = new if old is None else [torch.cat(pair, dim=-2) for pair in zip(old, new)]
        self.state[i] = keys, rotated, values
        s = model.scores(model.queries(i, x, self.length), keys, rotated)
        ahead = torch.arange(x.shape[0])[:, None] + self.length < torch.arange(rotated.shape[0])[None]
        return model.project(i, s.masked_fill(ahead, -math.inf).softmax(-1) @ values)

    def read(self, tokens):
        """Logits [n][vocab] of the next @tokens."""
        logits = self.model.run(tokens, self._attention)
        self.length += len(tokens)
        return logits
