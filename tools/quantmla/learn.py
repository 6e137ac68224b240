# SPDX-License-Identifier: Apache-2.0
"""The calibrator's default method in PyTorch: rotation, diagonal and RoPE pairs chosen for joint
feedback rounding. Written apart from client/calibrate/, to check it and to try variants.

Rows are tokens, vectors are rows: z = (u - mean) R S of the content, z = (k - mean) T of the key
before its rotation. One sensitivity H of both paths, keys first, is factored as A^T D A, A unit
lower triangular, after some damping; B = A^-1. A rounding error of variance r in a coordinate's
target then reaches the output as r D, and other coordinates' targets as r B^2.
"""
import dataclasses
import math

import torch

ROPE_DAMPING = 2e-3
CONTENT_DAMPING = {4: 1e-3, 2: 1e-2}  # of a mean diagonal of 1
ROPE_NOISE = 0.014                    # variance of a rounding error, of the coordinate's own
CONTENT_NOISE = {4: 0.0115, 2: 0.14}


@dataclasses.dataclass
class Joint:
    """One layer's sensitivities, scaled to a mean diagonal of 1 of the content's, and covariances."""
    content: torch.Tensor   # [d_c][d_c], damped
    rope: torch.Tensor      # [d_r][d_r]
    cross: torch.Tensor     # [d_c][d_r]
    response: torch.Tensor  # [d_c][d_r]: minus what content does best about a unit error of a key's coordinate
    content_cov: torch.Tensor
    rope_cov: torch.Tensor
    pairs: tuple            # first and second coordinates of the key's pairs

    @property
    def remainder(self):
        """What of the key's sensitivity the content cannot take back: the Schur complement."""
        return self.rope - self.cross.T @ self.response


def joint(statistics, geometry, bits, cross=True):
    """Joint of calibrate.Statistics."""
    s = statistics
    scale = s.h_u.trace() / len(s.mean_u)
    content, rope, both = (torch.from_numpy(h / scale) for h in (s.h_u, s.h_k, s.h_x if cross else 0 * s.h_x))
    content = content + CONTENT_DAMPING[bits] * torch.eye(len(content), dtype=torch.float64)
    j = torch.arange(geometry.rope // 2)
    pairs = (2 * j, 2 * j + 1) if geometry.interleaved else (j, j + geometry.rope // 2)
    return Joint(content, rope, both, torch.linalg.solve(content, both), torch.from_numpy(s.cov_u),
                 torch.from_numpy(s.cov_k), pairs)


def factor(h):
    """A and D with h = A^T D A."""
    upper = torch.linalg.cholesky(h.flip(0, 1)).flip(0, 1)
    diagonal = upper.diagonal()
    return (upper / diagonal).T, diagonal ** 2


def inverse(a):
    eye = torch.eye(len(a), dtype=a.dtype)
    return torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)


def spread(b):
    """Squares of b below its diagonal: how errors widen later targets."""
    return torch.tril(b, -1) ** 2


def pair_transform(angle, log_scale, pairs):
    """T [d_r][d_r]: turns pair j by its angle, then scales it."""
    a, b = pairs
    cos, sin, scale = angle.cos(), angle.sin(), log_scale.exp()
    t = torch.zeros(2 * len(angle), 2 * len(angle), dtype=angle.dtype)
    return t.index_put((a, a), cos * scale).index_put((b, a), sin * scale).index_put(
        (a, b), -sin * scale).index_put((b, b), cos * scale)


def key_model(j, angle, log_scale):
    """What the key's rounding costs: one scale for all coordinates, as wide as the 6-norm of
    their targets says. Returns the predicted error, T, A, D, and the width."""
    t = pair_transform(angle, log_scale, j.pairs)
    back = torch.linalg.inv(t)
    h = back @ j.remainder @ back.T
    a, d = factor(h + ROPE_DAMPING * h.diagonal().mean() * torch.eye(len(h), dtype=h.dtype))
    variance = ((t.T @ j.rope_cov) * t.T).sum(1)
    width = (variance ** 3).mean() ** (1 / 3)
    variance = variance + ROPE_NOISE * width * spread(inverse(a)).sum(1)
    width = (variance ** 3).mean() ** (1 / 3)
    return ROPE_NOISE * width * d.sum(), t, a, d, width


def fit_pairs(j, steps=150, rate=0.02):
    """Angles and log scales of least predicted error, from the closed form s = (h a^2)^(1/8) / a on."""
    a, b = j.pairs
    sensitivity = j.rope.diagonal()[a] + j.rope.diagonal()[b]
    size = (j.rope_cov.diagonal()[a] + j.rope_cov.diagonal()[b]).sqrt()
    log_scale = ((sensitivity * size ** 2) ** (1 / 8) / size).log()
    parts = [torch.zeros_like(size), log_scale - log_scale.mean()]
    first, second = [0, 0], [0, 0]
    for step in range(steps):
        parts = [part.detach().requires_grad_() for part in parts]
        gradients = torch.autograd.grad(key_model(j, *parts)[0].log(), parts)
        now = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        for k, g in enumerate(gradients):
            first[k] = 0.9 * first[k] + 0.1 * g
            second[k] = 0.98 * second[k] + 0.02 * g ** 2
            move = first[k] / (1 - 0.9 ** (step + 1)) / ((second[k] / (1 - 0.98 ** (step + 1))).sqrt() + 1e-12)
            parts[k] = parts[k] - now * move
    return [part.detach() for part in parts]


def content_loss(h, covariance):
    """sum D_i sigma_i^2: the error when every coordinate has a scale of its own width."""
    return (factor(h)[1] * covariance.diagonal()).sum()


def content_pull(h, covariance):
    """Skew W: when R becomes R (I + K), K skew and small, content_loss changes by <K, W>.

    D_i of R^T H R moves by b_i^T dH b_i with b_i the columns of B, so with Lambda = D sigma^2 the
    gradient is the sum of two commutators: A^T Lambda B^T + Sigma D, less its transpose."""
    a, d = factor(h)
    x = (a.T * (d * covariance.diagonal())) @ inverse(a).T + covariance * d
    return x - x.T


def fit_rotation(h, covariance, rotation, steps=200, rate=0.3):
    """R of least content_loss, downhill along the orthogonal group with momentum."""
    n, eye = len(h), torch.eye(len(h), dtype=h.dtype)
    h, covariance = rotation.T @ h @ rotation, rotation.T @ covariance @ rotation
    drift, square = torch.zeros_like(h), 0.0
    for step in range(steps):
        pull = content_pull(h, covariance) / content_loss(h, covariance)
        drift = 0.9 * drift + 0.1 * pull
        square = 0.98 * square + 0.02 * pull.pow(2).mean()
        size = rate * 0.5 * (1 + math.cos(math.pi * step / steps)) / math.sqrt(n)
        move = drift / (1 - 0.9 ** (step + 1)) / (square / (1 - 0.98 ** (step + 1))).sqrt() * size
        turn = torch.linalg.solve(eye + move / 2, eye - move / 2)
        rotation = rotation @ turn
        h, covariance = turn.T @ h @ turn, turn.T @ covariance @ turn
        h, covariance = (h + h.T) / 2, (covariance + covariance.T) / 2
    q, r = torch.linalg.qr(rotation)
    return q * r.diagonal().sign()


def widths(b, variance, noise):
    """Variances of targets: their own, and what earlier errors, each in its own scale, add."""
    eye = torch.eye(len(b), dtype=b.dtype)
    return torch.linalg.solve_triangular(eye - noise * spread(b), variance[:, None], upper=False)[:, 0]


def learn(statistics, geometry, bits, rotation, steps=200, cross=True, pairs=True, scaled=True):
    """(arrays as quantmla.safetensors names them, in cache coordinates; R S; T). @rotation is
    where R starts; with no @steps it stays there."""
    j = joint(statistics, geometry, bits, cross)
    zero = torch.zeros(geometry.rope // 2, dtype=torch.float64)
    angle, log_scale = fit_pairs(j) if pairs else (zero, zero)
    _, t, key_a, key_d, width = key_model(j, angle, log_scale)
    back = torch.linalg.inv(t)
    answer = j.response @ back.T @ inverse(key_a)  # what content does about errors of the key's targets
    covariance = j.content_cov + ROPE_NOISE * width * answer @ answer.T
    r = fit_rotation(j.content, covariance, torch.from_numpy(rotation), steps)
    a, d = factor(r.T @ j.content @ r)
    own = ((covariance @ r) * r).sum(0)
    tau2 = widths(inverse(a), own + 1e-5 * own.mean(), CONTENT_NOISE[bits])
    s = tau2 ** -0.5 if scaled else torch.ones_like(tau2)
    s = s / s.log().mean().exp()
    x = torch.linalg.solve_triangular(a.T, r.T @ j.cross @ back.T, upper=True) / d[:, None]
    arrays = {"content_mean": s * (r.T @ torch.from_numpy(statistics.mean_u)),
              "rope_mean": t.T @ torch.from_numpy(statistics.mean_k),
              "content_feedback": s[:, None] * a / s, "content_weight": d / s ** 2,
              "rope_feedback": key_a, "rope_weight": key_d, "cross_feedback": s[:, None] * x}
    half = ("content_feedback", "rope_feedback", "cross_feedback")
    stored = {name: v.half().numpy() if name in half else v.float().numpy() for name, v in arrays.items()}
    if not cross:
        del stored["cross_feedback"]
    return stored, (r * s).numpy(), t.numpy()
