#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo, stopped on the way or robbed of a server: it says so, and leaves nothing behind.

Usage: demo_interrupt.py DEMO BINARY_FOLDER
"""
import os
import signal
import subprocess
import sys
import tempfile
import time


def processes_of(folder):
    """Process ids whose command line names the demo's folder."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace")
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                state = file.read().rsplit(")", 1)[-1].split()[0]
        except OSError:
            continue  # it has just ended
        if folder in words and state != "Z":
            found.append(int(entry))
    return found


def run_demo(demo, binaries, after_line, act):
    """Runs the demo, calls act(process, folder) once a line starts so; (status, last line, leftovers)."""
    with tempfile.TemporaryDirectory(prefix="qmla-test-") as folder:
        process = subprocess.Popen([demo, binaries], stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, TMPDIR=folder), start_new_session=True)
        last, acted = "", False
        for line in process.stdout:
            last = line.rstrip()
            if not acted and last.startswith(after_line):
                acted = True
                act(process, folder)
        status = process.wait(60)
        assert acted, f"the demo never said '{after_line}'; its last line: {last}"
        time.sleep(0.2)
        return status, last, processes_of(folder), os.listdir(folder)


def send(number):
    """Interrupts the demo itself, as a shell does on Ctrl-C for the foreground."""
    return lambda process, _folder: process.send_signal(number)


def kill_decode_worker(_process, folder):
    """Kills the decode worker behind the demo's back."""
    for pid in processes_of(folder):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        if b"decode" in words and words[0].endswith(b"qmla-worker"):
            os.kill(pid, signal.SIGKILL)


def check(name, result, expected):
    status, last, processes, files = result
    assert status == 1, f"{name}: exit status {status}"
    assert last.startswith("demo: FAIL") and expected in last, f"{name}: last line '{last}'"
    assert not processes, f"{name}: still running: {processes}"
    assert not files, f"{name}: left behind: {files}"
    print(f"{name}: {last}")


def main():
    demo, binaries = sys.argv[1], os.path.abspath(sys.argv[2])
    if not os.path.exists(os.path.join(binaries, "qmla")):
        print("skipped: the programs are not built")
        return 77
    check("SIGINT while serving", run_demo(demo, binaries, "2. ", send(signal.SIGINT)), "SIGINT")
    check("SIGTERM while starting", run_demo(demo, binaries, "1. ", send(signal.SIGTERM)), "SIGTERM")
    check("a worker dies", run_demo(demo, binaries, "2. ", kill_decode_worker), "decode worker")
    return 0


if __name__ == "__main__":
    sys.exit(main())
