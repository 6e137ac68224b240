# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the programs that the interop tests talk to."""

import os
import subprocess
import tempfile
import time


class Process:
    """A program that stops, cleanly, when the test ends."""

    def __init__(self, arguments, **options):
        self.popen = subprocess.Popen(arguments, **options)

    def stop(self):
        """Ends the program as an operator would; returns its exit status."""
        self.popen.terminate()
        try:
            return self.popen.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError("the program did not end within 20 s of SIGTERM")


class Peer(Process):
    """The C test server of tests/unit/proto (peer.c)."""

    def __init__(self, program):
        super().__init__([program, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = "127.0.0.1:%d" % int(self.popen.stdout.readline())

    def stop(self):
        self.popen.stdin.close()
        self.popen.stdout.close()
        return self.popen.wait(timeout=20)


class Node(Process):
    """A cache node on a port that the kernel chooses."""

    def __init__(self, program, *flags):
        self.folder = tempfile.TemporaryDirectory()
        port_file = os.path.join(self.folder.name, "port")
        super().__init__(
            [program, "--listen", "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--http-listen", "none"]
            + ["--pool-size", "64MiB", "--port-file", port_file, *flags]
        )
        self.address = "127.0.0.1:%d" % self._await_port(port_file)

    def _await_port(self, path, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.popen.poll() is not None:
                raise AssertionError("the node ended with status %d" % self.popen.returncode)
            try:
                with open(path, encoding="ascii") as file:
                    words = file.read().split()
            except FileNotFoundError:
                words = []
            if words:
                return int(words[0])
            time.sleep(0.02)
        self.popen.kill()
        raise AssertionError("the node wrote no port to %s within %d s" % (path, seconds))

    def stop(self):
        status = super().stop()
        self.folder.cleanup()
        return status
