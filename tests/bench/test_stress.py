#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The re-parametrised checkpoints of stress_checkpoint.py are the same function bit for bit,
hostile to a cache that takes them as they are, and the tables' judgement of them is right.

usage: test_stress.py QMLA SOURCE_DIRECTORY
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = ["tests/data/mla-s", "tests/golden/v3-bf16-half-bias", "tests/golden/v2-f32-yarn-qlora-bias-sharded",
         "tests/golden/v3-f32-half-qlora-eps-tied"]


def measure(qmla, model, reference, text, cache, *more):
    command = [qmla, "eval", "--model", model, "--reference", reference, "--text", text, "--length", "192",
               "--sequences", "2", "--cache", cache, "--ignore-calibration", "--threads", "1", "--json", *more]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def check_same_function(qmla, root, scratch):
    text = root / "LICENSE"
    for case in CASES:
        source, hostile = root / case, scratch / Path(case).name
        subprocess.run([sys.executable, HERE / "stress_checkpoint.py", source, hostile], check=True)
        row = measure(qmla, hostile, source, text, "f32", "--against", "f32")
        assert row["kl"] == 0 and row["top1"] == 1, row
        assert row["bits_per_byte"] == row["reference_bits_per_byte"], row
        rounding = ["--protect", "none", "--quantiser", "paper"]
        plain = measure(qmla, source, source, text, "c4r4", *rounding)
        row = measure(qmla, hostile, source, text, "c4r4", *rounding)
        print(f"{case}: paper's rounding alone costs {plain['kl']:.4f}, re-parametrised {row['kl']:.4f}")
        # Random weights have no outliers of their own, and too few dimensions to hurt.
        assert case != CASES[0] or row["kl"] > 5 * plain["kl"], row


def check_tables(scratch):
    def row(name, kl, **more):
        return {"name": name, "cache": "c4r4", "protect": "none", "method": "default", "sequences": 2, "positions": 382,
                "bits_per_byte_change": 0.001, "kl": kl, "top1": 0.99, **more}

    file = scratch / "rows.jsonl"
    rows = [row("a", 0.9), row("a", 0.001, kl_95=[0.0005, 0.002], recall=0.9, reference_recall=0.925),
            row("a-stress", 0.0011), row("b", 0.001), row("b-stress", 0.0013)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    out = subprocess.run([sys.executable, HERE / "accuracy_table.py", file], check=True, capture_output=True, text=True)
    assert "1.000 (0.500 … 2.000)" in out.stdout, out.stdout
    assert "900.000" not in out.stdout, "an older line of the same row counts"
    assert "| 2.50 |" in out.stdout, out.stdout
    assert "| 1.10 | holds |" in out.stdout and "| 1.30 | FAILS |" in out.stdout, out.stdout


def main():
    with tempfile.TemporaryDirectory() as scratch:
        check_same_function(sys.argv[1], Path(sys.argv[2]), Path(scratch))
        check_tables(Path(scratch))


if __name__ == "__main__":
    main()
