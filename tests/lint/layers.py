#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the folder rules of ARCHITECTURE.md: who may include whom, and no cycles.

Reads every #include "folder/…" of the sources that git knows and names each line
that points the wrong way. Exit status 1 when there is one.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Longest prefix of a file's path decides. Each may always include itself.
ALLOWED = {
    "common": [],
    "kernels": ["common"],
    "transport": ["common"],
    "proto": ["common"],
    "server": ["common", "kernels", "transport", "proto", "server/store"],
    "server/store": ["common"],
    "client/include": ["common"],
    "client/cache": ["common", "kernels", "transport", "proto"],
    "client/model": ["common", "kernels"],
    "client/calibrate": ["common", "kernels", "client/model"],
    "client/worker": ["common", "kernels", "proto", "client/cache", "client/model"],
    "client/cli": ["common", "kernels", "transport", "proto", "client/cache", "client/model",
                   "client/calibrate", "client/worker"],
}
# Foreign headers that only one place may know.
ONLY_IN = {
    r"^grpc/": ["proto"],
    r"^infiniband/": ["transport/verbs"],
    r"^nccl": ["transport/nccl"],
    r"^cuda": ["kernels/cuda", "transport/nccl", "transport/verbs", "common/cuda", "server/device"],
    r"^microhttpd": ["common", "server", "client/worker"],
    r"^cblas|^openblas": ["kernels/cpu", "client/model", "client/calibrate"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def owner(path, table):
    best = ""
    for prefix in table:
        if (path == prefix or path.startswith(prefix + "/")) and len(prefix) > len(best):
            best = prefix
    return best


def check(path):
    home = owner(path, ALLOWED)
    for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, target = match.groups()
        for pattern, places in ONLY_IN.items():
            if re.search(pattern, target) and kind == "<" and not owner(path, places):
                yield f"{path}:{number}: <{target}> belongs to {', '.join(places)} only"
        there = owner(target, ALLOWED)
        if kind == '"' and there and there != home and there not in ALLOWED[home]:
            yield f"{path}:{number}: {home} may not include {there} ({target})"


def main():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    sources = [n for n in names
               if n.endswith((".c", ".h", ".cu", ".cuh")) and owner(n, ALLOWED) and (ROOT / n).exists()]
    faults = [fault for name in sources for fault in check(name)]
    print("\n".join(faults) if faults else f"folder rules hold in {len(sources)} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
