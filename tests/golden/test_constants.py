#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/quantmla, which makes the packed cache's constants. Exit 77: NumPy is missing.
The tests that run a model also need PyTorch and are skipped without it."""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "..", "..", "tools")
MLA_S = os.path.join(HERE, "..", "data", "mla-s")
sys.path.insert(0, TOOLS)

try:
    import numpy as np
except ImportError:
    print("skipped: Python has no NumPy (apt install python3-numpy)")
    sys.exit(77)

from quantmla import calibrate_io, record, tensors  # noqa: E402

try:
    import torch
    from quantmla import caches, calibrate, learn
    from quantmla.model import Decoder, Model, Rounded
except ImportError:
    torch = None


def random(seed):
    return np.random.Generator(np.random.PCG64(seed))


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def make_constants(model, output, *more):
    return subprocess.run([sys.executable, os.path.join(TOOLS, "make_constants.py"), "--model", model, "--output", output,
                           "--text", os.path.join(HERE, "..", "data", "prompts", "golden.txt"), *more],
                          capture_output=True, text=True, check=False)


def random_sensitivity(n, seed=1):
    """Positive semidefinite, of less than full rank, with very unequal directions."""
    g = random(seed).normal(size=(n // 2, n)) * np.exp(random(seed + 1).normal(size=n))
    return g.T @ g


class Factors(unittest.TestCase):
    def test_hadamard(self):
        h = record.hadamard(8)
        self.assertTrue(np.allclose(h @ h.T, np.eye(8)))
        self.assertTrue(np.allclose(np.abs(h), 8 ** -0.5))
        self.assertTrue(np.allclose(h[1] * 8 ** 0.5, [1, -1, 1, -1, 1, -1, 1, -1]))
        with self.assertRaises(ValueError):
            record.hadamard(192)

    def test_identity(self):
        """e^T H e = sum D_i (A e)_i^2 for any error e."""
        for n in (8, 64, 200):
            h = random_sensitivity(n)
            a, d = record.feedback_factors(h)
            damped = h / (np.trace(h) / n) + 1e-3 * np.eye(n)
            self.assertTrue(np.allclose(np.triu(a), np.eye(n)))
            self.assertTrue((d > 0).all())
            self.assertLess(np.abs(a.T @ np.diag(d) @ a - damped).max(), 1e-9 * np.abs(damped).max())
            for e in random(7).normal(size=(5, n)):
                self.assertAlmostEqual((d * (a @ e) ** 2).sum() / (e @ damped @ e), 1, places=9)

    def test_no_sensitivity(self):
        with self.assertRaises(ValueError):
            record.feedback_factors(np.zeros((4, 4)))

    def test_committed(self):
        """Those of mla-s as they are stored."""
        _, layers, rotation = calibrate_io.read(MLA_S)
        self.assertEqual(len(layers), 3)
        self.assertTrue(np.allclose(rotation @ rotation.T, np.eye(512)))
        for layer in layers:
            for path, n in (("content", 512), ("rope", 64)):
                a, d = layer[path + "_feedback"].astype(float), layer[path + "_weight"]
                self.assertTrue((np.triu(a) == np.eye(n)).all())
                self.assertTrue((d > 0).all())
                self.assertEqual(layer[path + "_mean"].shape, (n,))

    def test_committed_digest(self):
        description, _, _ = calibrate_io.read(MLA_S)
        self.assertEqual(description["model_sha256"], tensors.checkpoint_digest(MLA_S))


class PackedFiles(unittest.TestCase):
    """The committed files of a run with a packed cache: what can be checked without a model."""

    def golden(self, name):
        return tensors.read_file(os.path.join(HERE, "mla-s-packed", name + ".safetensors"))

    def test_shapes(self):
        text = read_bytes(os.path.join(HERE, "..", "data", "prompts", "golden.txt"))[:512]
        for form, page in (("c4r4", 18688), ("c2r4", 10496)):
            packed = self.golden(form)
            self.assertEqual(packed["tokens"].tobytes(), text)
            self.assertEqual(packed["pages"].shape, (7, 3, page))
            self.assertEqual(packed["last_log_probabilities"].shape, (64, 256))
            self.assertEqual(packed["cost"].shape, (2, 2))

    def test_log_probabilities(self):
        """They sum to one."""
        for form in ("c4r4", "c2r4"):
            last = self.golden(form)["last_log_probabilities"].astype(float)
            self.assertLess(np.abs(np.exp(last).sum(1) - 1).max(), 1e-5)

    def test_two_bits_cost_more(self):
        """More divergence, fewer equal bytes; both small, neither none: the cache was packed."""
        four, two = (self.golden(form)["cost"] for form in ("c4r4", "c2r4"))
        self.assertTrue((two[:, 0] > four[:, 0]).all() and (four[:, 0] > 1e-5).all())
        self.assertTrue((two[:, 1] <= four[:, 1]).all() and (two[:, 1] > 0.95).all())


class Rounding(unittest.TestCase):
    def test_plain_values(self):
        rows = np.array([[1.0, -1.0, 0.26, 7.4, -9.0]])
        codes, loss = record.round_feedback(rows, np.array([1.0]), 4, np.eye(5), np.ones(5))
        self.assertEqual(codes.tolist(), [[9, 7, 8, 15, 0]])
        self.assertEqual(record.dequantise(codes, 1.0, 4).tolist(), [[1.5, -0.5, 0.5, 7.5, -7.5]])
        self.assertAlmostEqual(loss[0], 0.25 + 0.25 + 0.0576 + 0.01 + 2.25)

    def test_zero_row(self):
        codes, scales = record.quantise(np.zeros((2, 64), np.float32), 2)
        self.assertTrue((scales == 0).all() and (record.dequantise(codes, scales[:, None], 2) == 0).all())

    def test_blocks_do_not_matter(self):
        """The blocked recursion against the formula, one coordinate after the other."""
        n = 150
        a, d = record.feedback_factors(random_sensitivity(n))
        row, scale = random(3).normal(size=n), 0.3
        error, expected = np.zeros(n), np.zeros(n)
        for i in range(n):
            target = row[i] + sum(a[i, j] * error[j] for j in range(i))
            expected[i] = min(max(np.floor(target / scale) + 8, 0), 15)
            error[i] = row[i] - scale * (expected[i] - 7.5)
        codes, loss = record.round_feedback(row[None], np.array([scale]), 4, a, d)
        self.assertEqual(codes[0].tolist(), expected.tolist())
        self.assertAlmostEqual(loss[0], (d * (a @ error) ** 2).sum())

    def test_feedback_helps(self):
        """It lowers the error that counts, e^T H e, at both widths."""
        h = random_sensitivity(128)
        a, d = record.feedback_factors(h)
        rows = random(5).normal(size=(64, 128))
        for bits, gain in ((4, 0.5), (2, 0.8)):
            cost = {}
            for name, factors in (("plain", (None, None)), ("feedback", (a, d))):
                codes, scales = record.quantise(rows, bits, *factors)
                e = rows - record.dequantise(codes, scales[:, None], bits)
                cost[name] = np.einsum("ti,ij,tj->", e, h, e)
            self.assertLess(cost["feedback"], gain * cost["plain"])

    def test_cross_feedback_helps(self):
        """Content takes back what the key's codes did, by the joint measure of both."""
        keys, content = 32, 96
        h = random_sensitivity(keys + content)
        a, d = record.feedback_factors(h)
        rows = random(6).normal(size=(64, keys + content))
        codes, scales = record.quantise(rows[:, :keys], 4, a[:keys, :keys], d[:keys], dense=True)
        left = rows[:, :keys] - record.dequantise(codes, scales[:, None], 4)
        cost = []
        for cross in (a[keys:, :keys], 0 * a[keys:, :keys]):
            aims = rows[:, keys:] + left @ cross.T
            codes, scales = record.quantise(rows[:, keys:], 4, a[keys:, keys:], d[keys:], aims)
            e = np.concatenate((left, rows[:, keys:] - record.dequantise(codes, scales[:, None], 4)), 1)
            cost.append(np.einsum("ti,ij,tj->", e, h, e))
        self.assertLess(cost[0], 0.8 * cost[1])

    def test_many_scales_help(self):
        a, d = record.feedback_factors(random_sensitivity(64))
        rows, least = random(8).normal(size=(64, 64)), []
        for dense in (False, True):
            codes, scales = record.quantise(rows, 4, a, d, dense=dense)
            least.append((((rows - record.dequantise(codes, scales[:, None], 4)) @ a.T) ** 2 @ d).sum())
        self.assertLess(least[1], 0.97 * least[0])

    def test_bf16(self):
        rounded = record.bf16(np.float32([1.00390625, 1.01171875, -3.14159]))
        self.assertEqual(rounded.tolist(), [1.0, 1.015625, -3.140625])

    def test_paper(self):
        rows = random(9).normal(size=(3, 128)).astype(np.float32)
        step = (rows.reshape(-1, 64).max(1) - rows.reshape(-1, 64).min(1)) / 15
        error = np.abs(record.quantise_paper(rows, 4, "f32") - rows).reshape(-1, 64).max(1)
        self.assertTrue((error <= step * 1.01).all())


class Bytes(unittest.TestCase):
    def test_codes(self):
        codes = np.zeros((64, 64), np.uint8)
        codes[1, :4] = [1, 2, 3, 15]
        plane = record.pack_codes(codes, 4)
        self.assertEqual(plane.shape, (64, 32))
        # Two chunks a row: token 1 (reversed bits 4) keeps them, token 4 (reversed 1) swaps them.
        self.assertEqual(plane[1, :2].tolist(), [0x21, 0xF3])
        codes[4, :2] = [5, 6]
        self.assertEqual(record.pack_codes(codes, 4)[4, 16], 0x65)
        self.assertEqual(record.pack_codes(codes & 3, 2)[1, 0], 1 | 2 << 2 | 3 << 4 | 3 << 6)

    def test_page_sizes(self):
        for bits, size in ((4, 18688), (2, 10496)):
            page = record.pack_page((np.zeros((64, 512), np.uint8), np.ones(64)),
                                    (np.zeros((64, 64), np.uint8), np.ones(64)), bits)
            self.assertEqual(page.nbytes, size)

    def test_safetensors(self):
        arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float16([1, 2]), "c": np.uint8([7])}
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "x.safetensors")
            tensors.write_file(path, arrays)
            back = tensors.read_file(path)
            with open(path, "r+b") as file:
                file.truncate(20)
            with self.assertRaises(ValueError):
                tensors.read_file(path)
        self.assertEqual(list(back), list(arrays))
        for name, array in arrays.items():
            self.assertTrue((back[name] == array).all() and back[name].dtype == array.dtype)


@unittest.skipIf(torch is None, "Python has no PyTorch")
class Learning(unittest.TestCase):
    """The default method's formulas."""

    CONTENT, ROPE = 32, 8

    def statistics(self):
        """As a layer has them: joint sensitivity of both paths, unequal variances."""
        n = self.CONTENT + self.ROPE
        h, spread = random_sensitivity(n), np.exp(random(4).normal(size=n))
        mix = random(5).normal(size=(n, n)) / np.sqrt(n)
        covariance = (mix.T * spread) @ mix
        s = calibrate.Statistics(self.CONTENT, self.ROPE)
        s.h_u, s.h_k, s.h_x = h[8:, 8:], h[:8, :8], h[8:, :8]
        s.cov_u, s.cov_k = covariance[8:, 8:], covariance[:8, :8]
        s.mean_u, s.mean_k = random(6).normal(size=self.CONTENT), random(7).normal(size=self.ROPE)
        return s

    class Shape:
        interleaved, rope = False, 8

    def test_pull(self):
        """<K, W> is what a small turn K does to the loss."""
        j = learn.joint(self.statistics(), self.Shape, 4)
        k = torch.from_numpy(random(8).normal(size=(self.CONTENT, self.CONTENT)))
        k = k - k.T

        def loss(size):
            q = torch.matrix_exp(size * k)
            return learn.content_loss(q.T @ j.content @ q, q.T @ j.content_cov @ q)

        pull = learn.content_pull(j.content, j.content_cov)
        self.assertLess((pull + pull.T).abs().max().item(), 1e-9 * pull.abs().max().item())
        self.assertAlmostEqual(((loss(1e-6) - loss(-1e-6)) / 2e-6 / (k * pull).sum()).item(), 1, places=5)

    def test_rotation(self):
        """It stays orthogonal and lowers the loss, never below what no rotation can pass."""
        j = learn.joint(self.statistics(), self.Shape, 4)
        start = torch.from_numpy(record.hadamard(self.CONTENT))
        r = learn.fit_rotation(j.content, j.content_cov, start, 100)
        before, after = (learn.content_loss(q.T @ j.content @ q, q.T @ j.content_cov @ q).item() for q in (start, r))
        bound = self.CONTENT * ((j.content.logdet() + j.content_cov.logdet()) / self.CONTENT).exp().item()
        self.assertLess((r.T @ r - torch.eye(self.CONTENT)).abs().max().item(), 1e-12)
        self.assertLess(after, 0.7 * before)
        self.assertGreater(after, bound)

    def test_pairs(self):
        """Turned and scaled keys give the same scores with queries that T^-T takes along, and cost less."""
        j = learn.joint(self.statistics(), self.Shape, 4)
        angle, log_scale = learn.fit_pairs(j)
        t = learn.pair_transform(angle, log_scale, j.pairs)
        phase = torch.from_numpy(random(9).normal(size=4))
        turn = learn.pair_transform(phase, 0 * phase, j.pairs)  # what a position does
        self.assertLess((t @ turn - turn @ t).abs().max().item(), 1e-12)
        zero = torch.zeros(4, dtype=torch.float64)
        self.assertLess(learn.key_model(j, angle, log_scale)[0].item(), learn.key_model(j, zero, zero)[0].item())

    def test_constants_are_one_sensitivity(self):
        """Blocks of A and D give e^T H e of both paths, in the model's coordinates."""
        s = self.statistics()
        found, forth, t = learn.learn(s, self.Shape, 4, record.hadamard(self.CONTENT), steps=5)
        j = learn.joint(s, self.Shape, 4)
        key, content = random(10).normal(size=self.ROPE), random(11).normal(size=self.CONTENT)
        left = np.concatenate((key @ t, content @ forth))
        a = np.block([[found["rope_feedback"], np.zeros((self.ROPE, self.CONTENT))],
                      [found["cross_feedback"], found["content_feedback"]]]).astype(float)
        square = (a @ left) ** 2
        by_factors = found["rope_weight"] @ square[:8] + found["content_weight"] @ square[8:]
        key, content = torch.from_numpy(key), torch.from_numpy(content)
        by_operator = (key @ j.rope @ key + content @ j.content @ content + 2 * content @ j.cross @ key).item()
        self.assertLess(abs(by_factors / by_operator - 1), 0.02)  # damping of the key's, F16


@unittest.skipIf(torch is None, "Python has no PyTorch")
class Models(unittest.TestCase):
    def cases(self):
        return sorted(name for name in os.listdir(HERE) if name.startswith(("v2-", "v3-")) and "-moe-" not in name)

    def test_forward(self):
        """Our forward against transformers', every switch."""
        self.assertEqual(len(self.cases()), 10)
        for name in self.cases():
            golden = tensors.read_file(os.path.join(HERE, name, "golden.safetensors"))
            with torch.no_grad():
                logits = Model(os.path.join(HERE, name)).forward(golden["tokens"]).numpy()
            error = np.linalg.norm(logits - golden["logits"]) / np.linalg.norm(golden["logits"])
            self.assertLess(error, 1e-5, name)

    def test_rotations_change_nothing(self):
        """Means and Hadamard rotation with quantisation off give the same logits."""
        class Off(caches.Packed):
            def _path(self, layer, path, rows, bits):
                mean = self.constants[layer][path + "_mean"].astype(rows.dtype)
                return (rows - mean) + mean, (rows - mean) + mean

        model = Model(MLA_S, torch.float64)
        _, constants, rotation = calibrate_io.read(MLA_S)
        tokens = random(2).integers(32, 127, 150)
        with torch.no_grad():
            exact = model.forward(tokens)
            self.assertLess((model.forward(tokens, Off("c4r4", constants, rotation)) - exact).abs().max().item(), 1e-9)

    def test_own_block_is_not_packed(self):
        """A text of one block reads BF16 rows only, whatever the packed width."""
        model = Model(MLA_S)
        _, constants, rotation = calibrate_io.read(MLA_S)
        tokens = random(2).integers(32, 127, 80)
        with torch.no_grad():
            two, four = (model.forward(tokens, caches.Packed(form, constants, rotation)) for form in record.FORMATS)
        self.assertTrue(torch.equal(two[:64], four[:64]))
        self.assertGreater((two[64:] - four[64:]).abs().max().item(), 1e-3)

    def test_decoder(self):
        model, tokens = Model(MLA_S), random(2).integers(32, 127, 90)
        with torch.no_grad():
            whole, decoder = model.forward(tokens, Rounded(model)), Decoder(model)
            pieces = torch.cat([decoder.read(tokens[:50]), decoder.read(tokens[50:51]), decoder.read(tokens[51:])])
        self.assertLess((whole - pieces).abs().max().item(), 0.05)

    def test_sensitivity(self):
        """Probes estimate the squared change of the output that small errors make."""
        model = Model(MLA_S, torch.float64)
        tokens = np.fromfile(os.path.join(HERE, "..", "data", "prompts", "golden.txt"), dtype=np.uint8)[:256]
        inputs = []
        with torch.no_grad():
            model.forward(tokens, visit=lambda i, x: inputs.append(x))
        generator = torch.Generator().manual_seed(3)
        h_u, h_k, count = 0, 0, 16
        for _ in range(count):
            _, _, g_u, g_k = calibrate.probe(model, 1, inputs[1], generator)
            h_u, h_k = h_u + g_u.T @ g_u / count, h_k + g_k.T @ g_k / count
        with torch.no_grad():
            queries, (u, k) = model.queries(1, inputs[1]), model.latents(1, inputs[1])
            exact = model.attend(1, queries, (u, k))
            for h, n, changed in ((h_u, 512, lambda e: (u + e, k)), (h_k, 64, lambda e: (u, k + e))):
                ratios = []
                for seed in range(8):
                    e = 1e-4 * random(seed).normal(size=(256, n))
                    moved = model.attend(1, queries, changed(torch.from_numpy(e)))
                    ratios.append(((moved - exact) ** 2).sum().item() / (1e-8 * np.trace(h)))
                self.assertLess(abs(np.mean(ratios) - 1), 0.2)

    def test_script(self):
        """Two runs give the same bytes, which a reader accepts."""
        made = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as scratch:
                run = make_constants(MLA_S, scratch, "--sequences", "2", "--length", "300")
                self.assertEqual(run.returncode, 0, run.stderr)
                made.append([read_bytes(os.path.join(scratch, "quantmla." + end)) for end in ("json", "safetensors")])
                self.assertEqual(calibrate_io.read(scratch)[0]["content_rotation"], "hadamard")
        self.assertEqual(made[0], made[1])

    def test_script_refuses(self):
        with tempfile.TemporaryDirectory() as scratch:
            with open(os.path.join(scratch, "config.json"), "w", encoding="utf-8") as file:
                file.write('{"model_type": "deepseek_v3"}')
            for model, output, words in ((HERE, scratch, "config.json"),
                                         (scratch, scratch, "has no 'num_hidden_layers'"),
                                         (MLA_S, scratch, "holds 4 sequences"),
                                         (MLA_S, "/nonexistent", "no folder")):
                run = make_constants(model, output, "--length", "1000")
                self.assertNotEqual(run.returncode, 0)
                self.assertIn(words, run.stderr)
                self.assertNotIn("Traceback", run.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
