#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""qmla calibrate on a tiny checkpoint: results, interruption, refusals. Argument: the build directory."""
import hashlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(sys.argv.pop(1))
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
MODEL = GOLDEN / "v3-f32-rope32-yarn"
LAYERS = json.loads((MODEL / "config.json").read_text())["num_hidden_layers"]
QMLA = BUILD / "bin" / "qmla"


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


class Calibrate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="qmla-calibrate-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.out = self.root / "out"
        self.text = self.root / "text"
        self.text.write_text("".join(f"Line {i} of a text, {i * i % 97}.\n" for i in range(200)))

    def command(self, *flags, out=None, model=MODEL):
        return [QMLA, "calibrate", "--model", model, "--text", self.text, "--out", out or self.out,
                "--length", "96", "--sequences", "8", "--held-out", "2", *map(str, flags)]

    def calibrate(self, *flags, **places):
        extra = {k: places.pop(k) for k in ("preexec_fn",) if k in places}
        return subprocess.run(self.command(*flags, **places), capture_output=True, text=True, timeout=240,
                              **extra)

    def refused(self, done, *words, code=1):
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertFalse((self.out / "quantmla.json").exists())

    def test_result_and_json(self):
        done = self.calibrate("--json", "--cache", "c2r4")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual((result["method"], result["cache"], result["sequences"], result["held_out"]),
                         ("default", "c2r4", 8, 2))
        self.assertEqual(len(result["layers"]), LAYERS)
        for layer in result["layers"]:
            for path in ("content_output_nmse", "output_nmse"):
                self.assertLess(layer[path]["after"], layer[path]["before"])
        self.assertLess(result["equivalence"]["layer_error"], 1e-10)
        self.assertLess(result["equivalence"]["drift_nats"], 2e-3)
        about = json.loads((self.out / "quantmla.json").read_text())
        self.assertEqual((about["cache"], about["model_sha256"]), ("c2r4", result["model_sha256"]))
        self.assertEqual(len(about["layers"]), LAYERS)
        self.assertFalse(pathlib.Path(f"{self.out}.calibrate").exists())
        # A second time: not over it, and with --force the same bytes with other threads.
        first = digests(self.out)
        again = self.calibrate("--cache", "c2r4")
        self.assertEqual(again.returncode, 1)
        self.assertIn("--force", again.stderr)
        done = self.calibrate("--cache", "c2r4", "--force", "--threads", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("is ready", done.stdout)
        self.assertEqual(digests(self.out), first)

    def test_killed_run_continues(self):
        whole = self.root / "whole"
        self.assertEqual(self.calibrate(out=whole).returncode, 0)
        for layer, number in enumerate((signal.SIGKILL, signal.SIGTERM)):
            state = pathlib.Path(f"{self.out}.calibrate") / f"layer-{layer:03}.state"
            run = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            until = time.monotonic() + 120
            while not state.exists() and run.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            run.send_signal(number)
            said = run.communicate()[1]
            if run.returncode == 0:  # it was faster than the signal
                shutil.rmtree(self.out)
                continue
            self.assertFalse(self.out.exists())
            if number == signal.SIGTERM:
                self.assertEqual(run.returncode, 1)
                self.assertIn("continues where it was", said)
        done = self.calibrate("--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(digests(self.out), digests(whole))

    def test_damaged_state_is_learned_again(self):
        whole = self.root / "whole"
        self.assertEqual(self.calibrate(out=whole).returncode, 0)
        work = pathlib.Path(f"{self.out}.calibrate")
        run = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (work / "layer-000.state").exists() and run.poll() is None:
            time.sleep(0.01)
        run.kill()
        run.wait()
        if self.out.exists():
            self.skipTest("the run was faster than the signal")
        for file in work.glob("*.state"):
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        done = self.calibrate()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("learned again", done.stderr)
        self.assertEqual(digests(self.out), digests(whole))

    def test_usage(self):
        for flags, word in ((("--method", "best"), "--method"), (("--cache", "bf16"), "--cache"),
                            (("--length", "3"), "length")):
            self.refused(self.calibrate(*flags), word, code=2)
        done = subprocess.run([QMLA, "calibrate", "--model", MODEL], capture_output=True, text=True)
        self.refused(done, "--out", code=2)

    def test_refusals(self):
        self.text.write_text("short")
        self.refused(self.calibrate(), "too few", "--length")
        self.text.write_text("Some text that is long enough for it. " * 100)
        self.refused(self.calibrate(model=self.root), "config.json")
        copy = self.root / "model"
        shutil.copytree(MODEL, copy)
        self.refused(self.calibrate(model=copy, out=copy), "is the model itself")
        self.out.mkdir()
        (self.out / "precious").write_text("x")
        self.refused(self.calibrate("--force"), "neither empty")
        self.assertEqual((self.out / "precious").read_text(), "x")
        self.text.unlink()
        self.refused(self.calibrate(out=self.root / "other"), str(self.text))

    def test_several_texts(self):
        """Given again it is more text, and a name is one name whatever is in it."""
        whole, parts = self.root / "whole", [self.root / "a,b", self.root / "c"]
        self.assertEqual(self.calibrate(out=whole).returncode, 0)
        text = self.text.read_bytes()
        parts[0].write_bytes(text[:1000])
        parts[1].write_bytes(text[1000:])
        self.text.unlink()
        for operands in (["--text", parts[0], "--text", parts[1]], ["--text", parts[0], parts[1]]):
            done = subprocess.run([QMLA, "calibrate", "--model", MODEL, "--out", self.out, "--length", "96",
                                   "--sequences", "8", "--held-out", "2", *operands],
                                  capture_output=True, text=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(digests(self.out), digests(whole))
            shutil.rmtree(self.out)

    def test_bytes_are_no_tokens(self):
        copy = self.root / "model"
        shutil.copytree(MODEL, copy)
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "vocab_size": 512}))
        # What these weights are not; what is said about the vocabulary comes before that.
        self.refused(self.calibrate(model=copy), "warning", "vocabulary of 512", "--tokens")
        (copy / "tokenizer.json").write_text("{}")
        self.refused(self.calibrate(model=copy), "vocabulary of 512", "tokenizer.json", "--tokens")
        for command, words in (("analyze", ("tokenizer.json", "--tokens")), ("eval", ("warning", "vocabulary of 512"))):
            done = subprocess.run([QMLA, command, "--model", copy, "--text", self.text, "--length", "96"],
                                  capture_output=True, text=True, timeout=60)
            self.refused(done, *words)

    def test_other_run_in_the_way(self):
        work = pathlib.Path(f"{self.out}.calibrate")
        run = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (work / "run.json").exists() and run.poll() is None:
            time.sleep(0.005)
        run.kill()
        run.wait()
        if self.out.exists():
            self.skipTest("the run was faster than the signal")
        self.refused(self.calibrate("--seed", 5), "belongs to a run with another", "--force")
        done = self.calibrate("--seed", 5, "--force")
        self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_unwritable(self):
        self.root.chmod(0o555)
        self.addCleanup(self.root.chmod, 0o755)
        self.refused(self.calibrate(), "cannot be created")

    def test_files_may_not_grow(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        done = self.calibrate(preexec_fn=limit)
        self.refused(done, "cannot be written", "File too large")
        done = self.calibrate()
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
