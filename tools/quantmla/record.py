# SPDX-License-Identifier: Apache-2.0
"""The packed record in NumPy: transforms, feedback factors, rounding, the bytes of a page.

Rows are tokens.
"""
import numpy as np

FORMATS = {"c4r4": (4, 4), "c2r4": (2, 4)}  # bits of content, bits of RoPE
# Ratios of the scale that are tried, by bits and search; whether ratio 1 covers the largest magnitude (else it is the
# rms); the distances that are tried to both sides of the best so far (docs/format.md, 5).
SEARCHES = {(4, "plain"): (0.6 + 0.14 * np.arange(11), True, [0.07]),
            (2, "plain"): (0.5 + 0.15 * np.arange(11), False, [0.075]),
            (4, "feedback"): (np.array([.22, .25, .28, .31, .34, .37, .4, .5, .65]), False, []),
            (2, "feedback"): (0.95 + 0.3 * np.arange(4), False, [0.15, 0.075]),
            (4, "dense"): (0.55 + 0.0125 * np.arange(48), True, [])}
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


def base_scales(rows, bits, by_largest):
    """The scales that ratio 1 stands for."""
    if by_largest:
        return np.abs(rows).max(axis=1) / (2 ** (bits - 1) - 0.5)
    return np.sqrt(np.mean(rows * rows, axis=1))


def midrise_codes(targets, scale, bits):
    """Codes 0 … 2^bits - 1 of x: floor(x / scale) + 2^(bits-1), clipped. A scale of 0 gives the middle."""
    half = 2 ** (bits - 1)
    scaled = np.divide(targets, scale, out=np.zeros_like(targets), where=scale > 0)
    return np.clip(np.floor(scaled) + half, 0, 2 * half - 1)


def dequantise(codes, scale, bits):
    """What a reader makes of codes: scale (q + 1/2) with q = code - 2^(bits-1)."""
    return scale * (codes - (2 ** (bits - 1) - 0.5))


def round_feedback(rows, scale, bits, factor, weight, aims=None):
    """Rounds coordinate after coordinate, each meant to undo what the earlier ones did.
    @scale is [rows]; @aims: what rounding aims at, default the rows themselves. Returns the
    codes and, for each row, sum of D (target - value)^2."""
    n = rows.shape[1]
    aims = rows if aims is None else aims
    codes, errors = np.empty(rows.shape, np.uint8), np.empty_like(rows)
    loss = np.zeros(rows.shape[0], dtype=rows.dtype)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        owed = aims[:, start:stop] + errors[:, :start] @ factor[start:stop, :start].T
        for i in range(start, stop):
            target = owed[:, i - start] + errors[:, start:i] @ factor[i, start:i]
            code = midrise_codes(target, scale, bits)
            value = dequantise(code, scale, bits)
            codes[:, i], errors[:, i] = code, rows[:, i] - value
            loss += weight[i] * (target - value) ** 2
    return codes, loss


class Search:
    """The best codes so far of every row."""

    def __init__(self, rows, bits, factor, weight, aims, by_largest):
        self.rows, self.bits, self.factor, self.weight, self.aims = rows, bits, factor, weight, aims
        self.base = base_scales(rows if aims is None else aims, bits, by_largest)
        self.codes = np.full(rows.shape, 2 ** (bits - 1), np.uint8)
        self.scales, self.ratios = np.zeros(len(rows), rows.dtype), np.zeros(len(rows), rows.dtype)
        self.least = np.full(len(rows), np.inf, rows.dtype)

    def attempt(self, ratios):
        """Tries a scale a row, as fp16 stores it."""
        scale = np.minimum(self.base * ratios, 65504).astype(np.float16).astype(self.rows.dtype)
        trial, loss = round_feedback(self.rows, scale, self.bits, self.factor, self.weight, self.aims)
        better = loss < self.least
        self.codes[better], self.scales[better] = trial[better], scale[better]
        self.ratios[better], self.least[better] = (ratios + 0 * scale)[better], loss[better]


def quantise(rows, bits, factor=None, weight=None, aims=None, dense=False):
    """Codes [rows][n] and one fp16 scale a row, chosen by the weighted error among all that are
    tried. Without @factor and @weight: plain rounding, plain error. @aims as round_feedback;
    @dense: many scales, for the few coordinates of a RoPE key."""
    n = rows.shape[1]
    kind = "plain" if factor is None else "dense" if dense and bits == 4 else "feedback"
    factor = np.eye(n) if factor is None else factor
    weight = np.ones(n) if weight is None else weight
    ratios, by_largest, beside = SEARCHES[bits, kind]
    search = Search(rows, bits, factor.astype(rows.dtype), weight.astype(rows.dtype), aims, by_largest)
    for ratio in ratios:
        search.attempt(ratio)
    for distance in beside:
        center = search.ratios.copy()
        search.attempt(center - distance)
        search.attempt(center + distance)
    return search.codes, search.scales


def pack_codes(codes, bits):
    """[64][n] codes to a plane [64][n * bits / 8]: low bits first inside a byte, and the row's
    16-byte chunks permuted as kernels/layout.h says."""
    per_byte = 8 // bits
    split = codes.reshape(codes.shape[0], -1, per_byte).astype(np.uint32)
    packed = sum(split[..., i] << (bits * i) for i in range(per_byte)).astype(np.uint8)
    chunks = packed.reshape(codes.shape[0], -1, 16)
    count, out = chunks.shape[1], np.empty_like(chunks)
    low = count & -count  # the largest power of two that divides the number of chunks
    for token in range(codes.shape[0]):
        reversed_bits = (token & 1) << 2 | (token & 2) | (token & 4) >> 2
        out[token, np.arange(count) ^ (reversed_bits & (low - 1))] = chunks[token]
    return out.reshape(codes.shape[0], -1)


def pack_page(content, rope, content_bits, rope_bits=4):
    """Bytes of one layer's page from (codes, scales) of 64 tokens of either path."""
    planes = [pack_codes(content[0], content_bits), pack_codes(rope[0], rope_bits),
              content[1].astype("<f2"), rope[1].astype("<f2")]
    page = b"".join(plane.tobytes() for plane in planes)
    return np.frombuffer(page + bytes(-len(page) % 128), dtype=np.uint8)


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
