# SPDX-License-Identifier: Apache-2.0
"""Python's gRPC against a cache node: every call of qmla.v1.Cache that needs no data path.

usage: test_cache_api.py NODE_PROGRAM
"""

import hashlib
import queue
import sys
import threading
import time
import unittest

import grpc
import health_pb2
from qmla.v1 import cache_pb2 as pb

from processes import Node
from stubs import Stub

TIMEOUT = 20
PROGRAM = None
C4R4, C4R4_NAME = 1, "c4r4"


def layout(layers=2, content_dim=512, rope_dim=64):
    text = "qmla-layout-v1:%s:%d:%d:%d:64" % (C4R4_NAME, layers, content_dim, rope_dim)
    return pb.Layout(
        format=C4R4,
        layers=layers,
        content_dim=content_dim,
        rope_dim=rope_dim,
        page_tokens=64,
        version=1,
        fingerprint=int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"),
    )


def key(number):
    return hashlib.sha256(b"interop key %d" % number).digest()[:16]


class CacheTest(unittest.TestCase):
    counter = 0

    @classmethod
    def setUpClass(cls):
        cls.node = Node(PROGRAM)
        cls.channel = grpc.insecure_channel(cls.node.address)
        cls.cache = Stub(cls.channel, pb, "Cache")
        cls.identity = hashlib.sha256(b"interop").digest()
        cls.connected = cls.cache.Connect(
            pb.ConnectRequest(identity=cls.identity, layout=layout(), transports=["tcp"]), timeout=TIMEOUT
        )

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        assert cls.node.stop() == 0, "the node did not end cleanly on SIGTERM"

    def fresh_keys(self, count):
        first = CacheTest.counter
        CacheTest.counter += count
        return [key(i) for i in range(first, first + count)]

    def reserve(self, keys, lease_ms=10000):
        return self.cache.Reserve(
            pb.ReserveRequest(identity=self.identity, keys=keys, lease_ms=lease_ms), timeout=TIMEOUT
        )

    def lookup(self, keys, **fields):
        return self.cache.Lookup(
            pb.LookupRequest(identity=self.identity, keys=keys, **fields), timeout=TIMEOUT
        )

    def abort(self, tickets):
        request = pb.AbortRequest(incarnation=self.connected.incarnation, tickets=tickets)
        return self.cache.Abort(request, timeout=TIMEOUT)

    def refused(self, call, request, status, *words):
        """The call fails with the qmla status and its text names what it is about."""
        with self.assertRaises(grpc.RpcError) as caught:
            call(request, timeout=TIMEOUT)
        error = caught.exception
        found = dict(error.trailing_metadata()).get("qmla-status")
        self.assertEqual(found, str(-status), error.details())
        for word in words:
            self.assertIn(word, error.details())

    def test_describe(self):
        described = self.cache.Describe(pb.DescribeRequest(), timeout=TIMEOUT)
        self.assertEqual(described.protocol, 1)
        self.assertNotEqual(described.node_id, "")
        self.assertNotEqual(described.version, "")
        self.assertEqual(described.incarnation, self.connected.incarnation)
        self.assertGreater(described.capacity_bytes, 0)
        self.assertLessEqual(described.capacity_bytes, 64 << 20)
        self.assertIn("tcp", described.transports)
        self.assertFalse(described.draining)
        self.assertIn(self.identity, [p.identity for p in described.pools])

    def test_connect(self):
        again = self.cache.Connect(
            pb.ConnectRequest(identity=self.identity, layout=layout(), transports=["tcp"]), timeout=TIMEOUT
        )
        self.assertEqual(again.incarnation, self.connected.incarnation)
        self.assertEqual(again.transport, "tcp")
        self.assertEqual(again.region, self.connected.region)
        self.assertGreaterEqual(again.slot_bytes, 2 * 18688)
        self.assertGreater(again.slots, 0)
        self.assertGreaterEqual(again.max_batch_keys, 1024)

    def test_connect_refusals(self):
        connect = self.cache.Connect
        self.refused(
            connect,
            pb.ConnectRequest(identity=b"short", layout=layout()),
            pb.CODE_INVALID_ARGUMENT,
            "identity",
            "32",
        )
        self.refused(
            connect, pb.ConnectRequest(identity=self.identity), pb.CODE_INVALID_ARGUMENT, "layout"
        )
        self.refused(
            connect,
            pb.ConnectRequest(identity=self.identity, layout=layout(layers=3)),
            pb.CODE_LAYOUT_MISMATCH,
            "layout",
        )
        wrong = layout()
        wrong.fingerprint ^= 1
        self.refused(
            connect,
            pb.ConnectRequest(identity=hashlib.sha256(b"other").digest(), layout=wrong),
            pb.CODE_LAYOUT_MISMATCH,
            "fingerprint",
        )
        self.refused(
            connect,
            pb.ConnectRequest(identity=self.identity, layout=layout(), transports=["pigeon"]),
            pb.CODE_UNSUPPORTED,
            "transport",
        )

    def test_lookup_of_absent_keys(self):
        keys = self.fresh_keys(5)
        for fields in ({}, {"lease_ms": 5000}, {"lease_ms": 5000, "stop_at_hole": True}):
            found = self.lookup(keys, **fields)
            self.assertEqual([e.code for e in found.entries], [pb.CODE_NOT_FOUND] * 5)
            self.assertEqual(found.lease, 0)
            self.assertEqual(found.incarnation, self.connected.incarnation)

    def test_lookup_refusals(self):
        lookup = self.cache.Lookup
        self.refused(
            lookup,
            pb.LookupRequest(identity=self.identity, keys=[key(0), b"fifteen bytes.."]),
            pb.CODE_INVALID_ARGUMENT,
            "keys[1]",
            "16",
        )
        self.refused(lookup, pb.LookupRequest(identity=self.identity), pb.CODE_INVALID_ARGUMENT, "keys")
        self.refused(lookup, pb.LookupRequest(keys=[key(0)]), pb.CODE_INVALID_ARGUMENT, "identity")
        self.refused(
            lookup,
            pb.LookupRequest(identity=hashlib.sha256(b"unknown").digest(), keys=[key(0)]),
            pb.CODE_NOT_FOUND,
            "Connect",
        )
        many = self.connected.max_batch_keys + 1
        self.refused(
            lookup,
            pb.LookupRequest(identity=self.identity, keys=[key(0)] * many),
            pb.CODE_TOO_LARGE,
            str(many),
            str(many - 1),
        )

    def test_a_full_batch(self):
        count = self.connected.max_batch_keys
        found = self.lookup([i.to_bytes(16, "little") for i in range(count)])
        self.assertEqual(len(found.entries), count)

    def test_reserve_and_abort(self):
        keys = self.fresh_keys(3)
        reserved = self.reserve(keys)
        self.assertEqual([e.code for e in reserved.entries], [pb.CODE_OK] * 3)
        self.assertEqual(len(reserved.capability), 16)
        self.assertEqual(len({e.ticket for e in reserved.entries}), 3)
        self.assertEqual(len({e.offset for e in reserved.entries}), 3)
        self.assertGreater(reserved.lease_ms, 0)
        # Nothing is visible before its commit, and no second writer gets a ticket.
        self.assertEqual({e.code for e in self.lookup(keys).entries}, {pb.CODE_NOT_FOUND})
        self.assertEqual({e.code for e in self.reserve(keys).entries}, {pb.CODE_BUSY})
        tickets = [e.ticket for e in reserved.entries]
        self.assertEqual(list(self.abort(tickets).codes), [pb.CODE_OK] * 3)
        self.assertNotIn(pb.CODE_OK, self.abort(tickets).codes)
        again = self.reserve(keys)
        self.assertEqual([e.code for e in again.entries], [pb.CODE_OK] * 3)
        self.abort([e.ticket for e in again.entries])

    def test_a_duplicate_in_one_batch(self):
        (one,) = self.fresh_keys(1)
        reserved = self.reserve([one, one])
        self.assertEqual(reserved.entries[0].code, pb.CODE_OK)
        self.assertNotEqual(reserved.entries[1].code, pb.CODE_OK)
        self.abort([reserved.entries[0].ticket])

    def test_commit_of_a_block_that_was_never_written(self):
        (one,) = self.fresh_keys(1)
        reserved = self.reserve([one])
        request = pb.CommitRequest(
            incarnation=self.connected.incarnation,
            items=[pb.CommitItem(ticket=reserved.entries[0].ticket, digest=12345)],
        )
        (code,) = self.cache.Commit(request, timeout=TIMEOUT).codes
        self.assertIn(code, (pb.CODE_CORRUPT, pb.CODE_STALE, pb.CODE_FORMAT))
        self.assertEqual(self.lookup([one]).entries[0].code, pb.CODE_NOT_FOUND)

    def test_a_ticket_expires(self):
        (one,) = self.fresh_keys(1)
        reserved = self.reserve([one], lease_ms=100)
        end = time.monotonic() + reserved.lease_ms / 1000 + TIMEOUT
        while time.monotonic() < end:
            again = self.reserve([one], lease_ms=5000)
            if again.entries[0].code == pb.CODE_OK:
                break
            time.sleep(0.05)
        self.assertEqual(again.entries[0].code, pb.CODE_OK)
        (code,) = self.abort([reserved.entries[0].ticket]).codes
        self.assertNotEqual(code, pb.CODE_OK)
        self.abort([again.entries[0].ticket])

    def test_handles_of_another_life(self):
        other = self.connected.incarnation ^ 1
        for call, request in (
            (self.cache.Renew, pb.RenewRequest(incarnation=other, leases=[1], lease_ms=100)),
            (self.cache.Release, pb.ReleaseRequest(incarnation=other, leases=[1])),
            (self.cache.Commit, pb.CommitRequest(incarnation=other, items=[pb.CommitItem(ticket=1)])),
            (self.cache.Abort, pb.AbortRequest(incarnation=other, tickets=[1])),
            (
                self.cache.Report,
                pb.ReportRequest(identity=self.identity, incarnation=other, items=[pb.ReportItem(key=key(0))]),
            ),
        ):
            self.refused(call, request, pb.CODE_PEER_RESTARTED, "incarnation")

    def test_unknown_leases_and_tickets(self):
        mine = self.connected.incarnation
        renewed = self.cache.Renew(
            pb.RenewRequest(incarnation=mine, leases=[12345, 0], lease_ms=1000), timeout=TIMEOUT
        )
        self.assertEqual(list(renewed.codes), [pb.CODE_LEASE_EXPIRED] * 2)
        released = self.cache.Release(pb.ReleaseRequest(incarnation=mine, leases=[12345]), timeout=TIMEOUT)
        self.assertEqual(len(released.codes), 1)
        self.assertNotEqual(released.codes[0], pb.CODE_OK)

    def test_admin_calls_on_absent_keys(self):
        keys = self.fresh_keys(2)
        removed = self.cache.Remove(pb.RemoveRequest(identity=self.identity, keys=keys), timeout=TIMEOUT)
        self.assertEqual(list(removed.codes), [pb.CODE_NOT_FOUND] * 2)
        self.assertEqual(removed.removed, 0)
        pin = pb.PinRequest(identity=self.identity, keys=keys, owner="interop", ttl_ms=1000)
        self.assertEqual(list(self.cache.Pin(pin, timeout=TIMEOUT).codes), [pb.CODE_NOT_FOUND] * 2)
        unpin = pb.UnpinRequest(identity=self.identity, keys=keys, owner="interop")
        self.assertEqual(list(self.cache.Unpin(unpin, timeout=TIMEOUT).codes), [pb.CODE_NOT_FOUND] * 2)
        self.refused(
            self.cache.Pin,
            pb.PinRequest(identity=self.identity, keys=keys),
            pb.CODE_INVALID_ARGUMENT,
            "owner",
        )
        self.refused(
            self.cache.Remove,
            pb.RemoveRequest(identity=self.identity, keys=keys, all=True),
            pb.CODE_INVALID_ARGUMENT,
            "keys",
        )

    def test_stats_count(self):
        before = self.cache.Stats(pb.StatsRequest(), timeout=TIMEOUT)
        keys = self.fresh_keys(7)
        self.lookup(keys)
        reserved = self.reserve(keys[:2])
        during = self.cache.Stats(pb.StatsRequest(), timeout=TIMEOUT)
        self.abort([e.ticket for e in reserved.entries])
        self.assertEqual(during.lookups - before.lookups, 7)
        self.assertEqual(during.hits, before.hits)
        self.assertEqual(during.reserves - before.reserves, 2)
        self.assertEqual(during.tickets - before.tickets, 2)
        self.assertEqual(during.incarnation, self.connected.incarnation)

    def test_watch(self):
        call = self.cache.Watch(pb.WatchRequest(identity=self.identity, snapshot=True))
        events = queue.Queue()

        def read():
            try:
                for event in call:
                    events.put(event)
            except grpc.RpcError as error:
                events.put(error)

        reader = threading.Thread(target=read)
        reader.start()
        seen = events.get(timeout=TIMEOUT)
        while seen.kind == pb.WatchEvent.KIND_INSERTED:
            seen = events.get(timeout=TIMEOUT)
        self.assertEqual(seen.kind, pb.WatchEvent.KIND_SYNCED)
        call.cancel()
        last = events.get(timeout=TIMEOUT)
        while not isinstance(last, grpc.RpcError):
            last = events.get(timeout=TIMEOUT)
        self.assertEqual(last.code(), grpc.StatusCode.CANCELLED)
        reader.join()

    def test_watch_refusals(self):
        with self.assertRaises(grpc.RpcError) as caught:
            next(self.cache.Watch(pb.WatchRequest(identity=b"short"), timeout=TIMEOUT))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_unknown_methods(self):
        call = self.channel.unary_unary("/qmla.v1.Cache/Missing")
        with self.assertRaises(grpc.RpcError) as caught:
            call(b"", timeout=TIMEOUT)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_health(self):
        stub = Stub(self.channel, health_pb2, "Health")
        for service in ("", "qmla.v1.Cache"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="no.such"))
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        watch.cancel()


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
