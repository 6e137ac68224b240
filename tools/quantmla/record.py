# SPDX-License-Identifier: Apache-2.0
"""The packed record in NumPy: transforms, feedback factors, rounding. No codes are
packed into bytes here; a quantiser returns the values a reader gets back.

Rows are tokens. H_z is a path's sensitivity in cache coordinates.
"""
import numpy as np

FORMATS = {"c4r4": (4, 4), "c2r4": (2, 4)}  # bits of content, bits of RoPE
RATIOS = {4: np.linspace(0.6, 2.0, 11), 2: np.linspace(0.5, 2.0, 11)}
BLOCK = 64  # coordinates rounded one by one; what they owe to earlier ones is one product


def hadamard(n):
    """Normalised Sylvester matrix of order n, a power of two; symmetric and orthogonal."""
    if n & (n - 1):
        raise ValueError(f"a Hadamard rotation needs a power of two, not {n}")
    matrix = np.ones((1, 1))
    while matrix.shape[0] < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(n)


def feedback_factors(sensitivity, damping=1e-3):
    """A (unit lower triangular) and D > 0 with H + damping mean(diag) I = A^T D A, after H is
    scaled to a mean diagonal of 1: only ratios matter. A^T is upper, so this is a Cholesky
    factorisation taken from the last coordinate to the first."""
    n = sensitivity.shape[0]
    mean = np.trace(sensitivity) / n
    if not mean > 0:
        raise ValueError("sensitivity is zero: nothing to weigh errors by")
    damped = (sensitivity + sensitivity.T) / (2 * mean) + damping * np.eye(n)
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    diagonal = np.diag(upper).copy()
    return np.tril((upper / diagonal).T, -1) + np.eye(n), diagonal ** 2


def bf16(x):
    """Rounds to bfloat16 (nearest even) and back, keeping the dtype."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    return bits.view(np.float32).astype(x.dtype)


def scale_candidates(rows, bits):
    """[candidates][rows]: fp16 scales to try (accuracy.md's recipe, step 5)."""
    if bits == 2:
        unit = np.sqrt(np.mean(rows * rows, axis=1))
    else:
        unit = np.abs(rows).max(axis=1) / (2 ** (bits - 1) - 0.5)
    scales = (RATIOS[bits][:, None] * unit[None]).astype(np.float16)
    return np.maximum(scales, np.float16(6e-8)).astype(rows.dtype)


def round_midrise(targets, scale, bits):
    """Codes are symmetric and have no zero: value = scale (q + 1/2)."""
    half = 2 ** (bits - 1)
    return scale * (np.clip(np.floor(targets / scale), -half, half - 1) + 0.5)


def round_feedback(rows, scale, bits, factor, weight):
    """Rounds coordinate after coordinate, each meant to undo what the earlier ones did.
    @scale is [rows]. Returns the values and, for each row, sum of D (target - value)^2."""
    n = rows.shape[1]
    values, errors = np.empty_like(rows), np.empty_like(rows)
    loss = np.zeros(rows.shape[0], dtype=rows.dtype)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        owed = rows[:, start:stop] + errors[:, :start] @ factor[start:stop, :start].T
        for i in range(start, stop):
            target = owed[:, i - start] + errors[:, start:i] @ factor[i, start:i]
            values[:, i] = round_midrise(target, scale, bits)
            errors[:, i] = rows[:, i] - values[:, i]
            loss += weight[i] * (target - values[:, i]) ** 2
    return values, loss


def quantise(rows, bits, factor=None, weight=None):
    """Rows as a reader of a C4R4 or C2R4 page gets them: one fp16 scale a row, chosen by the
    weighted error. Without @factor and @weight: plain rounding, plain error."""
    n = rows.shape[1]
    factor = np.eye(n) if factor is None else factor
    weight = np.ones(n) if weight is None else weight
    factor, weight = factor.astype(rows.dtype), weight.astype(rows.dtype)
    best, best_loss = None, None
    for scale in scale_candidates(rows, bits):
        values, loss = round_feedback(rows, scale, bits, factor, weight)
        if best is None:
            best, best_loss = values, loss
            continue
        better = loss < best_loss
        best[better], best_loss[better] = values[better], loss[better]
    return best


def quantise_paper(rows, bits, scale_type, group=64):
    """The paper's asymmetric quantiser: groups of 64, integer zero point, round half to even.
    @scale_type: how the scale is stored, "bf16" (content) or "f32" (RoPE)."""
    groups = rows.reshape(-1, group)
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    top = 2 ** bits - 1
    scale = np.maximum(high - low, 1e-8) / top
    stored = bf16(scale) if scale_type == "bf16" else scale.astype(np.float32).astype(rows.dtype)
    zero = np.clip(np.rint(-low / scale), 0, top)
    codes = np.clip(np.rint(groups / scale + zero), 0, top)
    return (stored * (codes - zero)).reshape(rows.shape)
