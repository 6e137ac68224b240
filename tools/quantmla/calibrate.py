# SPDX-License-Identifier: Apache-2.0
"""Makes the constants of the packed cache: means, rotation, sensitivities, feedback factors."""
import numpy as np
import torch

from . import record


class Statistics:
    """Sums over calibration tokens of one layer, in float64 and in the model's coordinates."""

    def __init__(self, content, rope):
        self.tokens = 0
        self.mean_u, self.mean_k = np.zeros(content), np.zeros(rope)
        self.square_k = np.zeros(rope)
        self.cov_u, self.cov_k = np.zeros((content, content)), np.zeros((rope, rope))
        self.h_u, self.h_k, self.h_x = np.zeros((content, content)), np.zeros((rope, rope)), np.zeros((content, rope))

    def add(self, latent, key, grad_latent, grad_key):
        self.tokens += latent.shape[0]
        self.mean_u += latent.sum(0)
        self.mean_k += key.sum(0)
        self.square_k += (key ** 2).sum(0)
        self.cov_u += latent.T @ latent
        self.cov_k += key.T @ key
        self.h_u += grad_latent.T @ grad_latent
        self.h_k += grad_key.T @ grad_key
        self.h_x += grad_latent.T @ grad_key

    def finish(self):
        for name in ("mean_u", "mean_k", "square_k", "cov_u", "cov_k", "h_u", "h_k", "h_x"):
            setattr(self, name, getattr(self, name) / self.tokens)
        self.cov_u -= np.outer(self.mean_u, self.mean_u)
        self.cov_k -= np.outer(self.mean_k, self.mean_k)
        return self


def probe(model, i, x, generator):
    """Latents, keys and one Rademacher probe's gradients to them through layer i's attention.

    With r = ±1 in the shape of the post-o_proj output Y, g = d(r . Y)/d(row) has
    E[g g^T] = J^T J: the operator by which a row's error reaches the output."""
    with torch.no_grad():
        latent, key = model.latents(i, x)
        queries = model.queries(i, x)
    latent, key = latent.clone().requires_grad_(), key.clone().requires_grad_()
    output = model.attend(i, queries, (latent, key))
    signs = torch.randint(0, 2, output.shape, generator=generator).to(output.dtype) * 2 - 1
    grads = torch.autograd.grad((output * signs).sum(), (latent, key))
    return [t.detach().double().numpy() for t in (latent, key, *grads)]


def sequences(text, count, length):
    """@count sequences spread evenly over @text (uint8), each of @length bytes."""
    available = len(text) // length
    if available < count:
        raise ValueError(f"the text holds {available} sequences of {length} bytes, {count} are wanted")
    return [text[s * length:(s + 1) * length] for s in (np.arange(count) * available) // count]


def collect(model, texts, seed=1):
    """One Statistics a layer."""
    g = model.geometry
    statistics = [Statistics(g.content, g.rope) for _ in range(g.layers)]
    generator = torch.Generator().manual_seed(seed)
    for tokens in texts:
        inputs = []
        with torch.no_grad():
            model.forward(tokens, visit=lambda i, x: inputs.append(x))
        for i, x in enumerate(inputs):
            statistics[i].add(*probe(model, i, x, generator))
    return [s.finish() for s in statistics]


def layer_constants(s, rotation):
    """Arrays of one layer as quantmla.safetensors names them, in cache coordinates."""
    r = np.eye(len(s.mean_u)) if rotation is None else rotation
    content_a, content_d = record.feedback_factors(r.T @ s.h_u @ r)
    rope_a, rope_d = record.feedback_factors(s.h_k)
    return {"content_mean": (s.mean_u @ r).astype(np.float32), "rope_mean": s.mean_k.astype(np.float32),
            "content_feedback": content_a.astype(np.float16), "content_weight": content_d.astype(np.float32),
            "rope_feedback": rope_a.astype(np.float16), "rope_weight": rope_d.astype(np.float32)}


def describe(s, constants):
    """Figures a person may want to see, a layer."""
    def largest(name):
        return round(float(np.abs(np.tril(constants[name].astype(float), -1)).max()), 4)

    return {"calibration_tokens": s.tokens,
            "content_mean_energy": round(float(np.mean(s.mean_u ** 2)), 6),
            "rope_mean_energy_share": round(float(np.sum(s.mean_k ** 2) / np.sum(s.square_k)), 6),
            "content_sensitivity": round(float(np.trace(s.h_u) / len(s.mean_u)), 9),
            "rope_sensitivity": round(float(np.trace(s.h_k) / len(s.mean_k)), 9),
            "content_feedback_max": largest("content_feedback"), "rope_feedback_max": largest("rope_feedback")}
