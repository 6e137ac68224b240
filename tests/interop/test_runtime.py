# SPDX-License-Identifier: Apache-2.0
"""Python's gRPC against the C runtime's server: health, errors, limits, streams.

usage: test_runtime.py PEER_PROGRAM
"""

import concurrent.futures
import sys
import threading
import time
import unittest

import grpc
import health_pb2
from qmla.v1 import cache_pb2

from processes import Peer
from stubs import Stub

TIMEOUT = 20
PROGRAM = None


def identity(data):
    return data


class RuntimeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = Peer(PROGRAM)
        cls.channel = grpc.insecure_channel(cls.peer.address)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        assert cls.peer.stop() == 0, "the server did not end cleanly"

    def unary(self, method, channel=None):
        return (channel or self.channel).unary_unary(
            "/test.Unary/" + method,
            request_serializer=cache_pb2.LookupRequest.SerializeToString,
            response_deserializer=cache_pb2.LookupResponse.FromString,
        )

    def stream(self, method):
        return self.channel.unary_stream(
            "/test.Stream/" + method,
            request_serializer=cache_pb2.LookupRequest.SerializeToString,
            response_deserializer=cache_pb2.WatchEvent.FromString,
        )

    def raw(self, method):
        return self.channel.unary_unary(
            "/test.Unary/" + method, request_serializer=identity, response_deserializer=identity
        )

    def refused(self, call, *arguments, **options):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*arguments, timeout=TIMEOUT, **options)
        return caught.exception

    def test_echo(self):
        request = cache_pb2.LookupRequest(keys=[bytes([i]) * 16 for i in range(100)], lease_ms=7)
        response = self.unary("Echo")(request, timeout=TIMEOUT)
        self.assertEqual([e.offset for e in response.entries], list(range(100)))
        self.assertEqual({e.length for e in response.entries}, {16})
        self.assertEqual(response.entries[3].digest, 2**64 - 4)
        self.assertEqual(response.lease_ms, 7)

    def test_failure_carries_the_exact_status(self):
        codes = {
            1: grpc.StatusCode.INVALID_ARGUMENT,
            2: grpc.StatusCode.NOT_FOUND,
            3: grpc.StatusCode.ALREADY_EXISTS,
            4: grpc.StatusCode.OUT_OF_RANGE,
            5: grpc.StatusCode.FAILED_PRECONDITION,
            6: grpc.StatusCode.FAILED_PRECONDITION,
            7: grpc.StatusCode.PERMISSION_DENIED,
            8: grpc.StatusCode.UNIMPLEMENTED,
            9: grpc.StatusCode.INVALID_ARGUMENT,
            20: grpc.StatusCode.RESOURCE_EXHAUSTED,
            21: grpc.StatusCode.RESOURCE_EXHAUSTED,
            22: grpc.StatusCode.ABORTED,
            23: grpc.StatusCode.INTERNAL,
            24: grpc.StatusCode.RESOURCE_EXHAUSTED,
            40: grpc.StatusCode.UNAVAILABLE,
            41: grpc.StatusCode.DEADLINE_EXCEEDED,
            42: grpc.StatusCode.CANCELLED,
            43: grpc.StatusCode.FAILED_PRECONDITION,
            44: grpc.StatusCode.UNAVAILABLE,
            60: grpc.StatusCode.FAILED_PRECONDITION,
            61: grpc.StatusCode.ABORTED,
            62: grpc.StatusCode.DATA_LOSS,
            80: grpc.StatusCode.INTERNAL,
        }
        self.assertEqual(set(codes) | {0}, set(cache_pb2.Code.values()))
        for number, code in codes.items():
            error = self.refused(self.unary("Fail"), cache_pb2.LookupRequest(lease_ms=number))
            self.assertEqual(error.code(), code, number)
            self.assertEqual(error.details(), "failed as asked")
            self.assertEqual(dict(error.trailing_metadata())["qmla-status"], str(-number))

    def test_unknown_methods(self):
        begin = time.monotonic()
        error = self.refused(self.unary("Missing"), cache_pb2.LookupRequest())
        self.assertEqual(error.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertIn("/test.Unary/Missing", error.details())
        self.assertLess(time.monotonic() - begin, TIMEOUT / 4)

    def test_client_streams_to_unknown_methods(self):
        call = self.channel.stream_stream("/test.Unary/Nowhere", identity, identity)
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(iter([b"a", b"b"]), timeout=TIMEOUT))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_a_call_without_a_message(self):
        call = self.channel.stream_unary("/test.Unary/Echo", identity, identity)
        error = self.refused(call, iter([]))
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("missing", error.details())

    def test_garbage(self):
        for payload in (b"\x12\xff\x01x", b"\xff" * 20, b"\x10\x01", b"\x0b\x0b\x0c"):
            error = self.refused(self.raw("Echo"), payload)
            self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn("qmla.v1.LookupRequest", error.details())

    def test_oversize(self):
        error = self.refused(self.raw("Echo"), b"\x12\x10" + b"k" * (2 << 20))
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_compression_does_not_get_round_the_limits(self):
        """16 MiB of zeros in 16 KiB of gzip, and a batch that is small only on the wire."""
        error = self.refused(self.raw("Echo"), bytes(16 << 20), compression=grpc.Compression.Gzip)
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        error = self.refused(self.raw("Echo"), b"\x12\x00" * 500000, compression=grpc.Compression.Gzip)
        self.assertEqual(error.code(), grpc.StatusCode.OUT_OF_RANGE)
        request = cache_pb2.LookupRequest(keys=[bytes(16)] * 1000)
        response = self.unary("Echo")(request, timeout=TIMEOUT, compression=grpc.Compression.Gzip)
        self.assertEqual(len(response.entries), 1000)

    def test_deep_nesting(self):
        payload = b""
        while len(payload) < 500000:
            payload = b"\x12" + varint(len(payload)) + payload
        response = self.raw("Echo")(payload, timeout=TIMEOUT)
        self.assertEqual(len(cache_pb2.LookupResponse.FromString(response).entries), 1)

    def test_large_metadata(self):
        """The connection may go, the server may not."""
        own = [("grpc.use_local_subchannel_pool", 1)]  # else it is the others' connection
        with grpc.insecure_channel(self.peer.address, options=own) as channel:
            error = self.refused(
                self.unary("Echo", channel),
                cache_pb2.LookupRequest(),
                metadata=[("x-large", "m" * 65536)],
            )
            self.assertIn(
                error.code(), (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
            )
        self.unary("Echo")(cache_pb2.LookupRequest(), timeout=TIMEOUT, metadata=[("x-small", "m")])

    def test_deadline(self):
        begin = time.monotonic()
        with self.assertRaises(grpc.RpcError) as caught:
            self.unary("Later")(cache_pb2.LookupRequest(lease_ms=3000), timeout=0.3)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertLess(time.monotonic() - begin, 2)

    def test_many_at_once(self):
        call = self.unary("Later")
        begin = time.monotonic()
        futures = [call.future(cache_pb2.LookupRequest(lease_ms=300), timeout=TIMEOUT) for _ in range(200)]
        for future in futures:
            future.result()
        self.assertLess(time.monotonic() - begin, 5)

    def test_streams(self):
        events = list(self.stream("Count")(cache_pb2.LookupRequest(lease_ms=300), timeout=TIMEOUT))
        self.assertEqual([e.keys[0][0] for e in events], [i % 256 for i in range(300)])
        call = self.stream("Broken")(cache_pb2.LookupRequest(), timeout=TIMEOUT)
        seen = []
        with self.assertRaises(grpc.RpcError) as caught:
            for event in call:
                seen.append(event.keys[0][0])
        self.assertEqual(seen, [1, 2])
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DATA_LOSS)
        self.assertEqual(dict(caught.exception.trailing_metadata())["qmla-status"], "-62")

    def test_cancelling_a_stream(self):
        call = self.stream("Idle")(cache_pb2.LookupRequest())
        self.assertEqual(next(call).keys[0][0], 1)
        threading.Timer(0.2, call.cancel).start()
        with self.assertRaises(grpc.RpcError) as caught:
            next(call)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.CANCELLED)

    def test_health_check(self):
        stub = Stub(self.channel, health_pb2, "Health")
        serving = health_pb2.HealthCheckResponse.SERVING
        for service in ("", "test.Unary", "test.Stream"):
            request = health_pb2.HealthCheckRequest(service=service)
            self.assertEqual(stub.Check(request, timeout=TIMEOUT).status, serving)
        error = self.refused(stub.Check, health_pb2.HealthCheckRequest(service="no.such"))
        self.assertEqual(error.code(), grpc.StatusCode.NOT_FOUND)

    def test_health_watch(self):
        stub = Stub(self.channel, health_pb2, "Health")
        known = stub.Watch(health_pb2.HealthCheckRequest(service=""))
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="no.such"))
        self.assertEqual(next(known).status, health_pb2.HealthCheckResponse.SERVING)
        self.assertEqual(next(unknown).status, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # Stays open: nothing more comes until it is cancelled.
            waiting = pool.submit(next, unknown)
            with self.assertRaises(concurrent.futures.TimeoutError):
                waiting.result(timeout=0.5)
            unknown.cancel()
            self.assertIsInstance(waiting.exception(timeout=TIMEOUT), grpc.RpcError)
        known.cancel()


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
