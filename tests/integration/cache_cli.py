#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The qmla command line against a real node. Argument: the build directory.

Block files are made here with nothing but hashlib and a plain XXH64, so that the
format is checked by a second implementation (docs/format.md).
"""
import hashlib
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

M = (1 << 64) - 1
P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)
LAYERS, CONTENT, ROPE = 2, 64, 32
LAYOUT = f"c4r4:{LAYERS}:{CONTENT}:{ROPE}"
PAGE = 64 * (CONTENT // 2 + ROPE // 2 + 2 + 2)
IDENTITY = bytes(range(32))


def rotl(x, r):
    return ((x << r) | (x >> (64 - r))) & M


def lane(acc, value):
    return rotl((acc + value * P2) & M, 31) * P1 & M


def xxh64(data, seed=0):
    at = 0
    if len(data) >= 32:
        v = [(seed + P1 + P2) & M, (seed + P2) & M, seed, (seed - P1) & M]
        while at + 32 <= len(data):
            for i, value in enumerate(struct.unpack_from("<4Q", data, at)):
                v[i] = lane(v[i], value)
            at += 32
        h = (rotl(v[0], 1) + rotl(v[1], 7) + rotl(v[2], 12) + rotl(v[3], 18)) & M
        for value in v:
            h = ((h ^ lane(0, value)) * P1 + P4) & M
    else:
        h = (seed + P5) & M
    h = (h + len(data)) & M
    while at + 8 <= len(data):
        h = (rotl(h ^ lane(0, int.from_bytes(data[at:at + 8], "little")), 27) * P1 + P4) & M
        at += 8
    if at + 4 <= len(data):
        h = (rotl(h ^ int.from_bytes(data[at:at + 4], "little") * P1 & M, 23) * P2 + P3) & M
        at += 4
    for byte in data[at:]:
        h = rotl(h ^ byte * P5 & M, 11) * P1 & M
    h = (h ^ (h >> 33)) * P2 & M
    h = (h ^ (h >> 29)) * P3 & M
    return h ^ (h >> 32)


def page_checksum(page):
    chunks = (xxh64(page[i:i + 128], i // 128) for i in range(0, len(page), 128))
    return xxh64(b"".join(struct.pack("<Q", value) for value in chunks))


def block_keys(tokens, namespace=b""):
    state = hashlib.sha256(b"qmla-key-v1\0" + IDENTITY + namespace).digest()
    keys = []
    for start in range(0, len(tokens) // 64 * 64, 64):
        state = hashlib.sha256(state + struct.pack("<64I", *tokens[start:start + 64])).digest()
        keys.append(state[:16])
    return keys


def make_block(key, seed):
    pages = [random.Random(seed * 100 + i).randbytes(PAGE) for i in range(LAYERS)]
    text = f"qmla-layout-v1:c4r4:{LAYERS}:{CONTENT}:{ROPE}:64".encode()
    fingerprint = hashlib.sha256(text).digest()[:8]
    header = bytearray(b"QMLABLK\n" + struct.pack("<HHI", 1, 1, LAYERS) + key + IDENTITY +
                       struct.pack("<QII", 0, 64, 0) + fingerprint + bytes(8))
    assert len(header) == 96
    for page in pages:
        header += struct.pack("<Q", page_checksum(page))
    header += bytes(-len(header) % 128)
    header[88:96] = struct.pack("<Q", xxh64(bytes(header)))
    return bytes(header) + b"".join(pages)


def start_node(folder, name, host, *flags):
    """A node on any port of host; returns the process and its address."""
    port_file = os.path.join(folder, name + ".port")
    with open(os.path.join(folder, name + ".log"), "wb") as log:
        node = subprocess.Popen(
            [os.path.join(BIN, "qmla-node"), "--listen", host + ":0", "--data-listen", host + ":0",
             "--http-listen", "none", "--port-file", port_file, "--pool-size", "16MiB", *flags],
            stderr=log)
    end = time.monotonic() + 20
    while not os.path.exists(port_file):
        if time.monotonic() > end or node.poll() is not None:
            node.kill()
            raise RuntimeError("qmla-node did not start")
        time.sleep(0.02)
    with open(port_file) as file:
        return node, host + ":" + file.readline().strip()


def stop_node(node):
    node.terminate()
    try:
        node.wait(20)
    except subprocess.TimeoutExpired:
        node.kill()
        raise


class Cli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="qmla-cli-")
        cls.node, cls.address = start_node(cls.folder.name, "node", "127.0.0.1")
        cls.tokens = [7 * i % 5000 for i in range(64 * 6 + 20)]
        cls.keys = block_keys(cls.tokens)

    @classmethod
    def tearDownClass(cls):
        stop_node(cls.node)
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def qmla(self, *words, code=0, nodes=None, stdout=subprocess.PIPE, preexec=None, layout=True):
        command = [os.path.join(BIN, "qmla"), words[0]]
        if words[0] not in ("version", "help"):
            command += ["-n", nodes or self.address, "-t", "2s"]
            if layout:
                command += ["--layout", LAYOUT, "--identity", IDENTITY.hex()]
        done = subprocess.run(command + list(words[1:]), stdout=stdout, stderr=subprocess.PIPE,
                              preexec_fn=preexec, timeout=30, check=False)
        message = done.stderr.decode()
        self.assertEqual(done.returncode, code, f"{words}: {message}")
        self.assertNotIn("Sanitizer", message)
        self.said = message
        return done.stdout

    def put(self, index, seed=1):
        path = self.path(f"block{index}")
        with open(path, "wb") as file:
            file.write(make_block(self.keys[index], seed + index))
        self.qmla("put", path)
        return path

    def clear(self):
        self.qmla("remove", "--all")

    def test_put_get_round_trip(self):
        self.clear()
        path = self.put(0)
        with open(path, "rb") as file:
            original = file.read()
        out = self.path("out")
        self.qmla("get", "-o", out, self.keys[0].hex())
        with open(out, "rb") as file:
            self.assertEqual(file.read(), original)
        # Twice is no mistake; the file in the way is.
        self.assertIn(b"already_exists", self.qmla("put", path))
        self.qmla("get", "-o", out, self.keys[0].hex(), code=1)
        self.assertIn("--force", self.said)
        self.qmla("get", "-f", "-o", out, self.keys[0].hex())
        self.assertEqual(self.qmla("get", "-o", "-", self.keys[0].hex()), original)

    def test_lookup_prefix(self):
        self.clear()
        for i in (0, 1, 3):
            self.put(i)
        tokens = self.path("tokens")
        with open(tokens, "w") as file:
            file.write(", ".join(str(t) for t in self.tokens))
        lines = self.qmla("lookup", "--json", "--tokens", tokens, code=1).splitlines()
        lines = [json.loads(line) for line in lines]
        self.assertEqual([line["key"] for line in lines[:-1]], [key.hex() for key in self.keys])
        self.assertEqual([line["status"] for line in lines[:-1]],
                         ["ok", "ok", "not_found", "ok", "not_found", "not_found"])
        self.assertEqual(lines[-1], {"keys": 6, "present": 3, "prefix": 2})
        self.qmla("lookup", self.keys[0].hex(), self.keys[3].hex())
        # Bytes as tokens, and the namespace: the same keys as here.
        text = self.path("text")
        with open(text, "wb") as file:
            file.write(bytes(range(128)))
        expected = block_keys(list(range(128)), b"team")
        said = self.qmla("lookup", "--text", text, "--namespace", "team", code=1).decode()
        for key in expected:
            self.assertIn(key.hex(), said)

    def test_get_directory(self):
        self.clear()
        self.put(0)
        self.put(1)
        folder = self.path("many")
        os.mkdir(folder)
        keys = [self.keys[i].hex() for i in (0, 1, 2)]
        self.qmla("get", "-d", folder, *keys, code=1)
        self.assertEqual(sorted(os.listdir(folder)), sorted(key + ".qmb" for key in keys[:2]))

    def test_remove_pin(self):
        self.clear()
        self.put(0)
        key = self.keys[0].hex()
        self.qmla("pin", "--ttl", "1m", "--owner", "me", key)
        self.assertIn(b"busy", self.qmla("remove", key, code=1))
        self.qmla("unpin", "--owner", "me", key)
        self.qmla("remove", key)
        self.assertIn(b"not_found", self.qmla("remove", key, code=1))
        self.qmla("pin", key, code=1)

    def test_watch(self):
        self.clear()
        self.put(0)
        command = [os.path.join(BIN, "qmla"), "watch", "-n", self.address, "--layout", LAYOUT,
                   "--identity", IDENTITY.hex(), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as watch:
            first = json.loads(watch.stdout.readline())
            self.assertEqual((first["event"], first["key"]), ("inserted", self.keys[0].hex()))
            self.assertEqual(json.loads(watch.stdout.readline())["event"], "synced")
            self.put(1)
            self.assertEqual(json.loads(watch.stdout.readline())["key"], self.keys[1].hex())
            self.qmla("remove", self.keys[0].hex())
            self.assertEqual(json.loads(watch.stdout.readline())["event"], "removed")
            watch.send_signal(signal.SIGINT)
            self.assertEqual(watch.wait(5), 0)

    def test_status(self):
        line = json.loads(self.qmla("status", "--json", layout=False))
        self.assertEqual(line["status"], "ok")
        self.assertGreater(line["capacity_bytes"], 1 << 20)
        self.qmla("status", layout=False, nodes="127.0.0.1:9", code=3)
        two = self.qmla("status", "--json", layout=False, nodes=f"{self.address},127.0.0.1:9",
                        code=3)
        self.assertEqual([json.loads(x)["status"] for x in two.splitlines()],
                         ["ok", "unavailable"])

    def test_unreachable(self):
        self.qmla("lookup", self.keys[0].hex(), nodes="127.0.0.1:9", code=3)
        self.qmla("get", "-o", self.path("never"), self.keys[0].hex(), nodes="127.0.0.1:9", code=3)
        self.assertFalse(os.path.exists(self.path("never")))
        self.qmla("remove", self.keys[0].hex(), nodes="127.0.0.1:9", code=3)
        path = self.path("block0")
        with open(path, "wb") as file:
            file.write(make_block(self.keys[0], 1))
        self.qmla("put", path, nodes="127.0.0.1:9", code=3)

    def round_trip(self, address, *flags):
        path = self.path("block4")
        with open(path, "wb") as file:
            file.write(make_block(self.keys[4], 4))
        self.qmla("put", *flags, path, nodes=address)
        for transport in ("tcp", "shm"):
            out = self.path("out-" + transport)
            self.qmla("get", *flags, "-f", "--transport", transport, "-o", out,
                      self.keys[4].hex(), nodes=address)
            with open(path, "rb") as file, open(out, "rb") as copy:
                self.assertEqual(file.read(), copy.read())

    def test_ipv6(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            self.skipTest(f"no IPv6 here: {error}")
        node, address = start_node(self.folder.name, "six", "[::1]")
        try:
            self.round_trip(address)
        finally:
            stop_node(node)

    def test_tls(self):
        for name in ("ca", "stranger"):
            self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
                         name + ".key", "-out", name + ".pem", "-subj", "/CN=" + name)
        self.certificate("node", "ca")
        self.certificate("client", "ca")
        self.certificate("other", "stranger")
        node, address = start_node(
            self.folder.name, "tls", "127.0.0.1", "--tls-ca", self.path("ca.pem"),
            "--tls-certificate", self.path("node.pem"), "--tls-key", self.path("node.key"))
        flags = ["--tls-ca", self.path("ca.pem"), "--tls-certificate"]
        good = flags + [self.path("client.pem"), "--tls-key", self.path("client.key")]
        try:
            self.round_trip(address, *good)
            key = self.keys[4].hex()
            self.qmla("lookup", key, nodes=address, code=3)
            self.qmla("lookup", *flags, self.path("other.pem"), "--tls-key",
                      self.path("other.key"), key, nodes=address, code=3)
            self.qmla("lookup", *good[:1], self.path("absent.pem"), *good[2:], key, nodes=address,
                      code=1)
            self.assertIn("absent.pem", self.said)
            self.qmla("lookup", *good[:2], key, nodes=address, code=2)
            self.assertIn("three files", self.said)
        finally:
            stop_node(node)

    def openssl(self, *words):
        done = subprocess.run(["openssl", *words], cwd=self.folder.name, capture_output=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def certificate(self, name, ca):
        with open(self.path("names"), "w") as file:
            file.write("subjectAltName=IP:127.0.0.1\n")
        self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", name + ".key", "-out",
                     name + ".csr", "-subj", "/CN=" + name)
        self.openssl("x509", "-req", "-in", name + ".csr", "-CA", ca + ".pem", "-CAkey",
                     ca + ".key", "-CAcreateserial", "-days", "2", "-extfile", "names", "-out",
                     name + ".pem")

    def test_bad_files(self):
        block = make_block(self.keys[5], 9)
        cases = {
            "empty": (b"", "no block"),
            "short": (block[:300], "bytes"),
            "long": (block + b"x", "bytes"),
            "noise": (bytes(len(block)), "no block"),
            "flipped page": (block[:-1] + bytes([block[-1] ^ 1]), "checksum"),
            "flipped header": (bytes([block[0]]) + bytes([block[1] ^ 1]) + block[2:], "no block"),
        }
        for name, (data, says) in cases.items():
            path = self.path("bad")
            with open(path, "wb") as file:
                file.write(data)
            self.qmla("put", path, code=1)
            self.assertIn(says, self.said, name)
            self.assertIn(path, self.said, name)
        self.qmla("put", self.path("absent"), code=1)
        self.assertIn("No such file", self.said)
        self.qmla("put", self.folder.name, code=1)
        other = make_block(self.keys[5], 9)
        with open(self.path("bad"), "wb") as file:
            file.write(other)
        self.qmla("put", "--identity", "00" * 32, self.path("bad"), code=1)
        self.assertIn("identity", self.said)
        self.qmla("lookup", self.keys[5].hex(), code=1)

    def test_bad_destinations(self):
        self.clear()
        self.put(0)
        key = self.keys[0].hex()
        self.qmla("get", "-o", self.path("no/such/folder"), key, code=1)
        self.assertIn("No such file or directory", self.said)
        # A file system that takes nothing, whoever we are.
        self.qmla("get", "-d", "/proc", key, code=1)
        self.assertIn("/proc", self.said)
        with open("/dev/full", "wb") as full:
            self.qmla("get", "-o", "-", key, code=1, stdout=full)
        self.assertIn("No space left", self.said)

        # A disk that is full in the middle of the block: no file, not even a part of one.
        def little_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        folder = self.path("full")
        os.mkdir(folder)
        self.qmla("get", "-d", folder, key, code=1, preexec=little_room)
        self.assertIn("File too large", self.said)
        self.assertEqual(os.listdir(folder), [])

    def test_usage(self):
        key = self.keys[0].hex()
        self.qmla("lookup", code=2)
        self.qmla("lookup", "zz", code=2)
        self.qmla("lookup", key, "--identity", code=2)
        self.qmla("lookup", "--layout", "c9r9:1:2:3", key, code=2)
        self.qmla("lookup", "--layout", "c4r4:0:512:64", key, code=2)
        self.qmla("lookup", "--transport", "pigeon", key, code=2)
        self.qmla("lookup", key, layout=False, code=2)
        self.qmla("lookup", "--text", "-", key, code=2)
        self.qmla("lookup", key, nodes="nonsense", code=2)
        self.qmla("put", code=2)
        self.qmla("get", code=2)
        self.qmla("get", "-o", "a", "-d", "b", key, code=2)
        self.qmla("get", "-o", "a", key, self.keys[1].hex(), code=2)
        self.qmla("remove", "--all", key, code=2)
        self.qmla("status", "more", layout=False, code=2)
        self.qmla("watch", "more", code=2)
        tokens = self.path("bad-tokens")
        with open(tokens, "w") as file:
            file.write("1 2 x3")
        self.qmla("lookup", "--tokens", tokens, code=2)
        self.assertIn("x3", self.said)
        done = subprocess.run([os.path.join(BIN, "qmla"), "nonsense"], capture_output=True,
                              check=False)
        self.assertEqual(done.returncode, 2)
        done = subprocess.run([os.path.join(BIN, "qmla")], capture_output=True, check=False)
        self.assertEqual(done.returncode, 2)

    def test_help(self):
        for command in ("generate", "status", "health", "lookup", "put", "get", "remove", "pin",
                        "unpin", "watch", "model", "eval", "bench", "version"):
            done = subprocess.run([os.path.join(BIN, "qmla"), command, "--help"],
                                  capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, command)
            text = done.stdout.decode()
            self.assertIn("Usage: qmla " + command, text)
            self.assertIn("Exit status", text, command)
        self.qmla("help", "get")
        self.assertEqual(json.loads(self.qmla("version", "--json"))["protocol"], 1)


class Bench(unittest.TestCase):
    def bench(self, *words):
        return subprocess.run([os.path.join(BIN, "qmla"), "bench", "attention", *words],
                              capture_output=True, check=False, text=True)

    def test_a_wrong_part_is_named(self):
        done = self.bench("nonsense")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'nonsense'", done.stderr)
        self.assertIn("pages, append and attend", done.stderr)
        self.assertEqual(self.bench("--heads", "999").returncode, 2)

    def test_no_gpu_is_told_with_the_remedy(self):
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("there is a GPU here")
        done = self.bench()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, "QMLA_CUDA=ON|compute capability 8.0")


if __name__ == "__main__":
    BIN = os.path.join(sys.argv.pop(1), "bin")
    for program in ("qmla", "qmla-node"):
        if not os.access(os.path.join(BIN, program), os.X_OK):
            print(f"skipped: {program} is not built")
            sys.exit(77)
    unittest.main()
