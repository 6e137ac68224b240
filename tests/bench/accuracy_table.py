#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Markdown tables from the JSON lines of accuracy.sh.

usage: accuracy_table.py FILE   (the last line of a model, method, cache and protection counts)
"""

import json
import sys

PROTECTS = ["none", "block", "sink4+recent128", "-"]
CACHES = ["f32", "bf16", "c4r4", "c2r4"]
METHODS = ["", "rtn", "smoothquant", "quarot", "paper", "default"]
STRESS = 1.2


def index(values, value):
    return values.index(value) if value in values else len(values)


def order(row):
    return (row["name"], index(CACHES, row["cache"]), index(PROTECTS, row["protect"]),
            index(METHODS, row.get("method", "")))


def interval(row, key, scale, digits):
    low, high = row.get(key + "_95", (None, None))
    value = f"{row[key] * scale:.{digits}f}"
    return value if low is None else f"{value} ({low * scale:.{digits}f} … {high * scale:.{digits}f})"


def lost(row):
    if "recall" not in row or "reference_recall" not in row:
        return "–"
    return f"{(row['reference_recall'] - row['recall']) * 100:.2f}"


def label(row):
    if row["cache"] in ("f32", "bf16"):
        arithmetic = "BF16" if row.get("arithmetic") == "bf16" else "float32"
        return f"{row['cache']} cache, {arithmetic} arithmetic, against float32"
    return row.get("method") or "not calibrated"


def table(name, rows):
    first = rows[0]
    print(f"### {name}: {first['sequences']} sequences of {first['positions'] // first['sequences'] + 1} bytes\n")
    print("| cache | protected | method | bytes | Δ mbpb | KL, 1e-3 nats | top-1 | recall lost, points |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        size = row.get("bytes_per_token_layer")
        print("|", " | ".join([
            row["cache"], row["protect"], label(row), f"{size:g}" if size else "–",
            interval(row, "bits_per_byte_change", 1e3, 2), interval(row, "kl", 1e3, 3),
            f"{row['top1']:.4f}", lost(row)]), "|")
    print()


def stress(rows):
    """The default's KL on the re-parametrised model over that on the model itself."""
    found = {}
    for row in rows:
        if row.get("method") == "default":
            found[row["name"], row["cache"], row["protect"]] = row["kl"]
    lines = []
    for (name, cache, protect), kl in found.items():
        hostile = found.get((name + "-stress", cache, protect))
        if hostile is not None:
            verdict = "holds" if hostile <= STRESS * kl else "FAILS"
            lines.append(f"| {name} | {cache} | {protect} | {kl * 1e3:.3f} | {hostile * 1e3:.3f} | "
                         f"{hostile / kl:.2f} | {verdict} |")
    if lines:
        print(f"### Outlier stress: at most {STRESS} times the error\n")
        print("| model | cache | protected | KL, 1e-3 nats | re-parametrised | ratio | |\n|---|---|---|---|---|---|---|")
        print("\n".join(lines), "\n")


def main():
    latest = {}
    with open(sys.argv[1], encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            key = (row["name"], row.get("method"), row["cache"], row["protect"], row.get("arithmetic"))
            latest[key] = row
    rows = sorted(latest.values(), key=order)
    names = []
    for row in rows:
        if row["name"] not in names:
            names.append(row["name"])
    for name in names:
        table(name, [row for row in rows if row["name"] == name])
    stress(rows)


if __name__ == "__main__":
    main()
