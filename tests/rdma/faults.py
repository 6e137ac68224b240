# SPDX-License-Identifier: Apache-2.0
"""Cases: what a cache over RDMA must survive. Node on the second host, client on the first."""
import os
import time

from parts import Client, Node, expect, processor_seconds, until

BLOCKS = 16


def pair(lab, *flags, **more):
    """A node with BLOCKS blocks and the client that put them there."""
    node = Node(lab, lab.hosts[1], *flags)
    client = Client(lab, lab.hosts[0], node, **more)
    client.publish(BLOCKS)
    client.fetch_all(BLOCKS)
    return node, client


def round_trip(lab):
    """Blocks go and come over verbs, and the node's figures say so."""
    node, client = pair(lab)
    block = 149632 - 64  # about: 8 layers of C4R4
    expect(node.metric("transport_written_bytes_total") > BLOCKS * block * 0.99,
           "the writes did not go over verbs")
    until(10, "the reads are accounted for",
          lambda: node.metric("transport_read_bytes_total") > BLOCKS * block * 0.99)
    told = lab.hosts[0].run(lab.program("qmla"), "status", "--nodes", node.address).stdout
    expect("verbs: rxe2 port 1" in told and "host memory" in told, f"qmla status says: {told}")


def automatic_choice(lab):
    """Without a word about devices or transport, both sides find verbs."""
    node = Node(lab, lab.hosts[1], devices="rxe2,rxe1")
    client = Client(lab, lab.hosts[0], node, "auto",
                    environment={"QMLA_RDMA_DEVICES": ""})
    client.publish(BLOCKS)
    client.fetch_all(BLOCKS)
    expect(node.metric("transport_writes_total") >= BLOCKS, "verbs was not chosen")


def link_down_and_up(lab):
    """The cable goes: a bounded miss, or tcp; it comes back: verbs again, not for ever tcp."""
    node, client = pair(lab)
    other = Client(lab, lab.hosts[0], node, "auto")
    other.fetch_all(BLOCKS)
    lab.hosts[0].link("down")
    try:
        expect(client.fetch(BLOCKS)["prefix"] < BLOCKS, "blocks came over a cable that is cut")
        until(30, "the client that may use tcp does",
              lambda: other.fetch(BLOCKS)["prefix"] == BLOCKS)
        expect(node.metric("transport_read_bytes_total", "tcp") > 0, "nothing went over tcp")
    finally:
        lab.hosts[0].link("up")
    client.recovers(BLOCKS)

    def over_verbs_again():
        before = node.metric("transport_reads_total")
        other.fetch_all(BLOCKS)
        time.sleep(2)  # readers tell the node what they read now and then
        return node.metric("transport_reads_total") > before
    until(60, "the other client uses verbs again", over_verbs_again)


def server_link_down(lab):
    """The same at the node's end, in the middle of a fetch."""
    _, client = pair(lab)
    client.say("fetch", BLOCKS)
    lab.hosts[1].link("down")
    try:
        answer = client.hear()
        expect(answer["intact"] == answer["prefix"], "wrong bytes passed as good")
        expect(answer["ms"] < 12000, f"the fetch took {answer['ms']} ms")
    finally:
        lab.hosts[1].link("up")
    client.recovers(BLOCKS)


def gid_change(lab):
    """Both ends get other addresses: the GIDs that connections were made with are gone."""
    _, client = pair(lab)
    before = [host.rdma_address for host in lab.hosts]
    for host in lab.hosts:
        host.readdress(f"10.0.0.{host.number + 10}")
    try:
        client.fetch(BLOCKS)
        client.recovers(BLOCKS)
    finally:
        for host, address in zip(lab.hosts, before):
            host.readdress(address)
    client.recovers(BLOCKS)


def peer_killed(lab):
    """kill -9 of the node: a miss in bounded time; also for the writer."""
    node, client = pair(lab)
    client.say("fetch", BLOCKS)
    node.kill()
    answer = client.hear()
    expect(answer["intact"] == answer["prefix"], "wrong bytes passed as good")
    expect(client.fetch(BLOCKS)["prefix"] == 0, "a dead node gave blocks")
    expect(client.ask("publish", 0, 2)["status"] != "ok", "a dead node took blocks")


def peer_restarted(lab):
    """The node's next life at the same address: old keys are stale, the new life is used."""
    node, client = pair(lab)
    node.kill()
    Node(lab, lab.hosts[1])
    until(30, "the client takes blocks to the new life",
          lambda: client.ask("publish", 0, BLOCKS)["status"] == "ok")
    client.fetch_all(BLOCKS)


def peer_stopped(lab):
    """SIGSTOP of the node: no call hangs; SIGCONT: as if nothing had been."""
    node, client = pair(lab)
    node.stop()
    expect(client.fetch(BLOCKS)["prefix"] == 0, "a node that stands answered a lookup")
    node.go_on()
    client.recovers(BLOCKS)


def clients_come_and_go(lab):
    """Clients killed over and over: queue pairs and registrations stay what the living need."""
    node, client = pair(lab)
    living = lab.resources("qp"), lab.resources("mr")
    for _ in range(6):
        other = Client(lab, lab.hosts[0], node, layers=8)
        other.fetch_all(BLOCKS)
        other.kill()
    until(60, "the dead clients' queue pairs are gone", lambda: lab.resources("qp") <= living[0])
    until(60, "their registrations are gone", lambda: lab.resources("mr") <= living[1])
    client.fetch_all(BLOCKS)


def client_stopped_while_writing(lab):
    """
    A late writer: it stands in the middle of its writes until its tickets are over, others
    get its slots, and it goes on. Nothing of what the others wrote changes.
    """
    node = Node(lab, lab.hosts[1], "--max-lease", "3s")
    late = Client(lab, lab.hosts[0], node, lease_ms=2000, timeout_ms=20000)
    room = 32 * 1024 * 1024 // 149632
    late.say("publish", 0, 200)
    until(20, "the writer has begun", lambda: node.metric("transport_writes_total") > 2)
    late.stop()
    other = Client(lab, lab.hosts[0], node)
    other.ask("chain", 1)
    time.sleep(4)  # its tickets end
    count = min(room, 200)
    until(30, "the slots are free for others",
          lambda: other.ask("publish", 0, count)["status"] == "ok")
    other.fetch_all(count)
    late.go_on()
    answer = late.hear(90)
    lab.note(f"the late writer ended with {answer}")
    reached = other.fetch(count)
    expect(reached["corrupt"] == 0, f"the late writer wrote into others' slots: {reached}")


def reader_left_behind(lab):
    """
    A reader stands in the middle of a fetch until its leases are over and its slots hold
    others' blocks, of a later generation. It must not take any of them for its own.
    """
    node = Node(lab, lab.hosts[1], "--max-lease", "3s")
    count = 200
    other = Client(lab, lab.hosts[0], node, timeout_ms=20000)
    other.publish(count)
    late = Client(lab, lab.hosts[0], node, lease_ms=1500, timeout_ms=20000)
    late.fetch_all(8)
    late.say("fetch", count)
    time.sleep(0.4)
    late.stop()
    time.sleep(4)  # its leases end
    expect(other.ask("clear")["status"] == "ok", "the blocks could not be removed")
    other.ask("chain", 1)
    other.publish(count)
    late.go_on()
    answer = late.hear(90)
    expect(answer["intact"] == answer["prefix"], f"others' bytes passed as good: {answer}")
    expect(answer["prefix"] < count, "it was through before it was stopped: nothing was tested")
    other.fetch_all(count)


def pool_changes_owner(lab):
    """
    The only pool goes to another identity while a client of the first is connected: its
    rkey is stale. It reads nothing more, and the new owner's blocks are whole.
    """
    node = Node(lab, lab.hosts[1], "--identity-idle", "1s", "--max-lease", "2s")
    first = Client(lab, lab.hosts[0], node, lease_ms=1000)
    first.publish(BLOCKS)
    first.fetch_all(BLOCKS)
    time.sleep(4)
    second = Client(lab, lab.hosts[0], node, identity=0x18)
    until(30, "the second identity has the pool",
          lambda: second.ask("publish", 0, BLOCKS)["status"] == "ok")
    expect(first.fetch(BLOCKS)["prefix"] == 0, "the first identity still reads")
    second.fetch_all(BLOCKS)


def idle_costs_nothing(lab):
    """Connected and idle, neither side uses the processor."""
    node, client = pair(lab)
    time.sleep(1)
    before = [processor_seconds(p.pid) for p in (node, client)]
    time.sleep(6)
    used = [processor_seconds(p.pid) - b for p, b in zip((node, client), before)]
    lab.note(f"processor seconds in 6 s, node and client: {used}")
    expect(max(used) < 0.3, f"idle for 6 s, node and client used {used} s of processor time")
    client.fetch_all(BLOCKS)


def no_library(lab):
    """Where libibverbs is not installed the same programs run, over tcp."""
    folder = "/usr/lib/x86_64-linux-gnu"
    hide = ["unshare", "--mount", "sh", "-c",
            f'for f in {folder}/libibverbs.so*; do mount --bind /dev/null "$f"; done; exec "$@"',
            "sh"]
    node = Node(lab, lab.hosts[1])
    client = Client(lab, lab.hosts[0], node, "auto", prefix=hide)
    client.publish(BLOCKS)
    client.fetch_all(BLOCKS)
    expect(node.metric("transport_writes_total", "tcp") >= BLOCKS, "tcp was not used")
    expect(node.metric("transport_writes_total") == 0, "verbs was used without its library")


def no_such_device(lab):
    """A device that is not there is an error that names it."""
    done = lab.hosts[1].run("timeout", "30", lab.program("qmla-node"), "--listen",
                            "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--http-listen", "none",
                            "--rdma-devices", "mlx5_7")
    expect(done.returncode == 1, f"exit status {done.returncode}")
    expect("mlx5_7" in done.stderr, f"the error does not name the device: {done.stderr}")


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all",
          "--inh-caps=-all"]


def open_devices():
    for number in (0, 1):
        os.chmod(f"/dev/infiniband/uverbs{number}", 0o666)


def unprivileged_user(lab):
    """Without root: the device files and enough locked memory are all that it takes."""
    open_devices()
    node = Node(lab, lab.hosts[1], prefix=NOBODY)
    client = Client(lab, lab.hosts[0], node, prefix=NOBODY, timeout_ms=20000)
    client.publish(BLOCKS)
    client.fetch_all(BLOCKS)
    expect(node.metric("transport_writes_total") >= BLOCKS, "the writes did not go over verbs")


def locked_memory_limit(lab):
    """A limit on locked memory that is too low: said with the remedy; tcp serves."""
    open_devices()
    node = Node(lab, lab.hosts[1], devices="", prefix=["prlimit", "--memlock=262144", *NOBODY])
    client = Client(lab, lab.hosts[0], node, "auto")
    client.publish(BLOCKS)
    client.fetch_all(BLOCKS)
    expect(node.metric("transport_writes_total", "tcp") >= BLOCKS, "tcp was not used")
    lab.log.flush()
    with open(lab.log.name, encoding="utf-8") as log:
        expect("memlock" in log.read(), "the log does not name the limit")


CASES = [round_trip, automatic_choice, link_down_and_up, server_link_down, gid_change, peer_killed,
         peer_restarted, peer_stopped, clients_come_and_go, client_stopped_while_writing,
         reader_left_behind, pool_changes_owner, idle_costs_nothing, no_library, no_such_device,
         unprivileged_user, locked_memory_limit]
