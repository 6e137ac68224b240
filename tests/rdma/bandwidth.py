# SPDX-License-Identifier: Apache-2.0
"""Cases: `qmla bench rdma` beside ib_read_bw at the same message size, in the same minute."""
import json

from parts import Failed, Node, expect, until

BLOCKS = "512"
PORT = ":18515"
FIGURES = "/run/qmla/bandwidth.jsonl"


def ib_read_bw(lab, size, count, *flags):
    """One run between the hosts; 10^6 bytes a second."""
    reader, owner = lab.hosts
    common = ["-x", "1", "-s", str(size), "-n", str(count), "-F", "--report_gbits", *flags]
    server = owner.popen("ib_read_bw", "-d", owner.device, *common, stdout=lab.log,
                         stderr=lab.log)
    try:
        until(20, "ib_read_bw listens", lambda: PORT in owner.run("ss", "-ltn").stdout)
        done = reader.run("ib_read_bw", "-d", reader.device, *common, owner.address, timeout=60)
    finally:
        server.kill()
        server.wait()
    lab.log.write(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[0] == str(size):
            return float(fields[3]) * 1000 / 8
    raise Failed(f"ib_read_bw gave no figure: {done.stderr.strip()}")


def limit(lab, size, count):
    """ib_read_bw by its own defaults; again when a run was too disturbed to give a figure."""
    for _ in range(4):
        rate = ib_read_bw(lab, size, count)
        if rate > 0:
            return rate
    raise Failed("ib_read_bw moves nothing")


def bench(lab, node, shape, *flags):
    command = [lab.program("qmla"), "bench", "rdma", "--nodes", node.address, "--shape", shape]
    # The emulator is slow to acknowledge under load; a connection that is up has no other faults here.
    done = lab.hosts[0].run(*command, *flags, timeout=140,
                            env=dict(lab.hosts[0].environment(), QMLA_RDMA_ACK_TIMEOUT="18"))
    lab.log.write(done.stdout + done.stderr)
    expect(done.returncode == 0, f"qmla bench ended with status {done.returncode}: {done.stderr}")
    return done.stdout


def one_pair(lab, node, shape, size, count):
    """Ours between two of theirs, whose mean it is held against."""
    before = limit(lab, size, count)
    figures = json.loads(bench(lab, node, shape, "--blocks", BLOCKS, "--rounds", "1"))
    theirs = (before + limit(lab, size, count)) / 2
    expect(figures["transport"] == "verbs", f"measured was {figures['transport']}")
    figures.update(ib_read_bw_mbytes_per_s=round(theirs, 1),
                   ratio=round(figures["transfer_gbytes_per_s"] * 1000 / theirs, 3),
                   blocks_ms_at_ib_read_bw=round(int(BLOCKS) * size / theirs / 1000, 1))
    with open(FIGURES, "a", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")
    print("# " + json.dumps(figures), flush=True)
    return figures["ratio"]


def holds(lab, shape, required, share_mib, count, pairs):
    """The median ratio of @pairs pairs; an emulator on a shared machine is not a quiet place."""
    node = Node(lab, lab.hosts[1], "--pool-size", f"{share_mib * pairs}MiB",
                "--max-identities", str(pairs), environment={"QMLA_RDMA_ACK_TIMEOUT": "18"})
    size = int(bench(lab, node, shape, "--print-bytes").split()[1])
    ratios = sorted(one_pair(lab, node, shape, size, count) for _ in range(pairs))
    middle = ratios[len(ratios) // 2]
    expect(middle >= required, f"{middle} of ib_read_bw, not {required}; all pairs: {ratios}")


def bandwidth_block(lab):
    """512 blocks of 1.2 MB: at least 90 % of ib_read_bw."""
    holds(lab, "block", 0.90, 640, 40, 1)


def bandwidth_page(lab):
    """512 pages of 25 KB: at least 80 % of ib_read_bw."""
    holds(lab, "page", 0.80, 16, 600, 5)


CASES = [bandwidth_block, bandwidth_page]
