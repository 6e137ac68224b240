#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""qmla analyze on a tiny checkpoint. Argument: the build directory."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

BUILD = pathlib.Path(sys.argv.pop(1))
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
MODEL = GOLDEN / "v3-f32-rope32-yarn"
PLOTS = ("paths.svg", "curve.svg", "predicted.svg", "decomposition.svg", "key-mean.svg")


def analyze(*flags):
    return subprocess.run([BUILD / "bin" / "qmla", "analyze", *map(str, flags)], capture_output=True,
                          text=True, timeout=120)


class Analyze(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="qmla-analyze-")
        cls.text = pathlib.Path(cls.folder.name) / "text"
        cls.text.write_text("A page of text, and another page of text. " * 6)
        cls.small = ("--model", MODEL, "--text", cls.text, "--length", 48, "--probes", 12)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check_layers(self, layers):
        self.assertTrue(layers)
        for layer in layers:
            for shape, ratio in layer["ratio"].items():
                responses = [layer[path][shape]["output_nmse"] for path in ("rope", "content")]
                self.assertAlmostEqual(ratio["measured"], responses[0] / responses[1],
                                       delta=1e-3 * ratio["measured"])
                for path in ("rope", "content"):
                    part = layer[path][shape]
                    product = layer[path]["sensitivity"] * part["allocation"]
                    self.assertAlmostEqual(product + part["coupling"], part["linear_gain"],
                                           delta=1e-3 * part["linear_gain"])
            self.assertLess(layer["proposition2"]["largest_share"], 1)
            self.assertTrue(all(0 <= share <= 1 for share in layer["key_mean_share"]))

    def test_json_holds_together(self):
        done = analyze(*self.small, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        result = json.loads(done.stdout)
        self.assertEqual([layer["layer"] for layer in result["layers"]],
                         list(range(json.loads((MODEL / "config.json").read_text())["num_hidden_layers"])))
        self.check_layers(result["layers"])

    def test_same_seed_same_bytes(self):
        first, second = (analyze(*self.small, "--json", "--threads", n).stdout for n in (1, 2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, analyze(*self.small, "--json", "--seed", 1).stdout)

    def test_files_and_table(self):
        out = pathlib.Path(self.folder.name) / "out"
        done = analyze(*self.small, "--out", out)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("Proposition 2 holds", done.stdout)
        for name in PLOTS:
            root = xml.parse(out / name).getroot()
            self.assertTrue(root.tag.endswith("svg"))
        self.assertEqual(json.loads((out / "analysis.json").read_text())["probes"], 12)

    def test_tokens_are_the_same_text(self):
        tokens = pathlib.Path(self.folder.name) / "tokens"
        tokens.write_bytes(b"".join(byte.to_bytes(4, "little") for byte in self.text.read_bytes()))
        done = analyze("--model", MODEL, "--tokens", tokens, *self.small[4:], "--json")
        self.assertEqual(done.stdout, analyze(*self.small, "--json").stdout)
        tokens.write_bytes(b"\xff" * 4000)
        self.check_refused(1, "vocabulary", "--model", MODEL, "--tokens", tokens, *self.small[4:])
        tokens.write_bytes(b"\0" * 4001)
        self.check_refused(1, "multiple of 4", "--model", MODEL, "--tokens", tokens, *self.small[4:])

    def test_chosen_layers(self):
        done = analyze(*self.small, "--json", "--layers", "1")
        self.assertEqual([layer["layer"] for layer in json.loads(done.stdout)["layers"]], [1])

    def test_every_family(self):
        models = [path.parent for path in sorted(GOLDEN.glob("*/config.json"))]
        self.assertGreater(len(models), 9)
        for model in models:
            with self.subTest(model=model.name):
                done = analyze("--model", model, *self.small[2:], "--json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.check_layers(json.loads(done.stdout)["layers"])

    def check_refused(self, code, what, *flags):
        done = analyze(*flags)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(what, done.stderr)

    def test_refusals_name_the_thing(self):
        text = ("--text", self.text)
        self.check_refused(2, "--model", *text)
        self.check_refused(2, "--tokens", *self.small, "--tokens", self.text)
        self.check_refused(2, "--nmse", *self.small, "--nmse", "0")
        self.check_refused(2, "probes", *self.small, "--probes", "0")
        self.check_refused(1, "--layers '0-9'", *self.small, "--layers", "0-9")
        self.check_refused(1, "--length 4096", "--model", MODEL, *text, "--length", 4096)
        self.check_refused(1, "/nonexistent", "--model", "/nonexistent", *text, "--length", 48)
        self.check_refused(1, "/nonexistent", "--model", MODEL, "--text", "/nonexistent")
        self.check_refused(1, "--out /dev/null/x", *self.small, "--out", "/dev/null/x")


if __name__ == "__main__":
    unittest.main(verbosity=2)
