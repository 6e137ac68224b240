# SPDX-License-Identifier: Apache-2.0
"""What the cases in the guest are made of: nodes, clients, and waiting for something."""
import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request


class Failed(Exception):
    """What a case found wrong, in one line."""


def expect(condition, problem):
    if not condition:
        raise Failed(problem)


def until(seconds, what, probe):
    """Asks @probe until it says something true; its answer."""
    end = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.2)


def processor_seconds(pid):
    """What a process has used, user and system."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Owned:
    """A process that ends with its case, its standard error in the case's log."""

    def __init__(self, lab, process):
        self.lab = lab
        self.process = process
        lab.owned.append(self)

    @property
    def pid(self):
        """`ip netns exec` becomes the program it runs."""
        return self.process.pid

    def send(self, number):
        self.process.send_signal(number)

    def stop(self):
        self.send(signal.SIGSTOP)
        until(5, "the process stands", lambda: self.state() == "T")

    def go_on(self):
        self.send(signal.SIGCONT)

    def state(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Node(Owned):
    """qmla-node on a host."""

    def __init__(self, lab, host, *flags, port=7600, devices=None, prefix=(), environment=None):
        self.host = host
        self.address = f"{host.address}:{port}"
        self.http = f"{host.address}:{port + 2}"
        devices = host.device if devices is None else devices
        command = [*prefix, lab.program("qmla-node"), "--listen", self.address, "--http-listen",
                   self.http, "--shm-dir", "none", "--pool-size", "32MiB", "--max-identities", "1",
                   "--rdma-devices", devices, *flags]
        super().__init__(lab, host.popen(*command, stdin=subprocess.DEVNULL, stdout=lab.log,
                                         stderr=lab.log,
                                         env=dict(host.environment(), **(environment or {}))))
        until(30, f"node {self.address} serves", self.serves)

    def serves(self):
        expect(self.process.poll() is None, "the node has ended")
        try:
            with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def metric(self, name, transport="verbs"):
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.search(rf'qmla_node_{name}{{transport="{transport}"}} (\d+)', text)
        return int(found.group(1)) if found else 0


class Client(Owned):
    """tests/rdma/client on a host."""

    def __init__(self, lab, host, node, transport="verbs", layers=8, timeout_ms=4000, lease_ms=0,
                 identity=0x17, environment=None, prefix=()):
        self.timeout = timeout_ms / 1000
        self.lines = queue.Queue()
        super().__init__(lab, host.popen(
            *prefix, lab.client, node.address, transport, str(layers), str(timeout_ms),
            str(lease_ms), str(identity), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=lab.log, text=True, bufsize=1, env=dict(host.environment(), **(environment or {}))))
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.lines.put(line)

    def say(self, *words):
        self.lab.note(f"client {self.pid}: {' '.join(map(str, words))}")
        self.process.stdin.write(" ".join(map(str, words)) + "\n")

    def hear(self, seconds=60):
        try:
            answer = json.loads(self.lines.get(timeout=seconds))
        except queue.Empty:
            raise Failed(f"the client says nothing for {seconds} s") from None
        self.lab.note(f"client {self.pid}: {answer}")
        return answer

    def ask(self, *words, seconds=60):
        self.say(*words)
        return self.hear(seconds)

    def publish(self, count, first=0):
        answer = self.ask("publish", first, count)
        expect(answer["status"] == "ok", f"publishing ended with {answer}")

    def fetch(self, count):
        """A fetch that ends in bounded time with nothing but good bytes."""
        answer = self.ask("fetch", count)
        expect(answer["status"] == "ok", f"a fetch is an error: {answer}")
        expect(answer["intact"] == answer["prefix"], f"wrong bytes passed as good: {answer}")
        expect(answer["ms"] < (self.timeout + 6) * 1000, f"a fetch took too long: {answer}")
        return answer

    def fetch_all(self, count):
        answer = self.fetch(count)
        expect(answer["prefix"] == count, f"{answer['prefix']} of {count} blocks: {answer}")
        return answer

    def recovers(self, count, seconds=30):
        until(seconds, "all blocks come again", lambda: self.fetch(count)["prefix"] == count)


class Lab:
    """Hosts, programs and the log of one case."""

    def __init__(self, binaries, client, hosts, log):
        self.binaries = binaries
        self.client = client
        self.hosts = hosts
        self.log = log
        self.owned = []
        self.folder = tempfile.mkdtemp(prefix="qmla-rdma-")

    def program(self, name):
        return os.path.join(self.binaries, "bin", name)

    def note(self, text):
        self.log.write(f"{time.monotonic():10.3f}  {text}\n")
        self.log.flush()

    def end(self):
        for owned in reversed(self.owned):
            owned.kill()
        self.owned = []

    def resources(self, kind):
        """How many queue pairs ("qp") or registrations ("mr") there are in this guest."""
        listed = json.loads(subprocess.run(["rdma", "-j", "resource", "show"], check=True,
                                           capture_output=True, text=True).stdout)
        return sum(device[kind] for device in listed)
