# SPDX-License-Identifier: Apache-2.0
"""Cases: `qmla bench rdma` beside ib_read_bw at the same message size, in turn.

Both readers are kept on one processor. Soft-RoCE does a card's work on whichever processor
posts; a reader that is moved has two of them wait for each other and packets overtake, and
what is measured then is how often the emulator's processors were switched.
"""
import json

from parts import Failed, Node, expect, until

BLOCKS = 512
PORT = ":18515"
FIGURES = "/run/qmla/bandwidth.jsonl"
ACK_TIMEOUT = "18"  # both sides: a second, since the emulator is slow to acknowledge under load
PINNED = ["taskset", "--cpu-list", "0"]


def ib_read_bw(lab, size, count, *flags):
    """One run between the hosts; 10^6 bytes a second."""
    reader, owner = lab.hosts
    common = ["-x", "1", "-s", str(size), "-n", str(count), "-u", ACK_TIMEOUT, "-F",
              "--report_gbits", *flags]
    server = owner.popen("ib_read_bw", "-d", owner.device, *common, stdout=lab.log,
                         stderr=lab.log)
    try:
        until(20, "ib_read_bw listens", lambda: PORT in owner.run("ss", "-ltn").stdout)
        done = reader.run(*PINNED, "ib_read_bw", "-d", reader.device, *common, owner.address,
                          timeout=120)
    finally:
        server.kill()
        server.wait()
    lab.log.write(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[0] == str(size) and float(fields[3]) > 0:
            return float(fields[3]) * 1000 / 8
    raise Failed(f"ib_read_bw gave no figure: {done.stdout} {done.stderr}")


def bench(lab, node, shape, *flags):
    command = [lab.program("qmla"), "bench", "rdma", "--nodes", node.address, "--shape", shape]
    done = lab.hosts[0].run(*PINNED, *command, *flags, timeout=300,
                            env=dict(lab.hosts[0].environment(), QMLA_RDMA_ACK_TIMEOUT=ACK_TIMEOUT))
    lab.log.write(done.stdout + done.stderr)
    expect(done.returncode == 0, f"qmla bench ended with status {done.returncode}: {done.stderr}")
    return done.stdout


def compare(lab, ours, theirs):
    """The ratio, and what 512 blocks take beside their bytes' time at ib_read_bw's rate."""
    expect(ours["transport"] == "verbs", f"measured was {ours['transport']}")
    ratio = ours["transfer_gbytes_per_s"] * 1000 / theirs
    expected_ms = BLOCKS * ours["block_bytes"] / theirs / 1000
    ours.update(ib_read_bw_mbytes_per_s=round(theirs, 1), ratio=round(ratio, 3),
                blocks_ms_at_ib_read_bw=round(expected_ms, 1))
    with open(FIGURES, "a", encoding="utf-8") as file:
        file.write(json.dumps(ours) + "\n")
    print("# " + json.dumps(ours), flush=True)
    return ratio


def holds(lab, shape, required, share_mib, count, rounds, pairs):
    """The median of @pairs; each of ours between two of theirs, whose mean it is held against."""
    node = Node(lab, lab.hosts[1], "--pool-size", f"{share_mib * pairs}MiB",
                "--max-identities", str(pairs), environment={"QMLA_RDMA_ACK_TIMEOUT": ACK_TIMEOUT})
    size = int(bench(lab, node, shape, "--print-bytes").split()[1])
    theirs, ratios = [ib_read_bw(lab, size, count)], []
    for _ in range(pairs):
        ours = json.loads(bench(lab, node, shape, "--blocks", str(BLOCKS), "--rounds", str(rounds)))
        theirs.append(ib_read_bw(lab, size, count))
        ratios.append(compare(lab, ours, sum(theirs[-2:]) / 2))
    ratios.sort()
    middle = ratios[len(ratios) // 2]
    expect(middle >= required,
           f"{middle:.3f} of ib_read_bw, not {required}; all pairs: {[round(r, 3) for r in ratios]}")


def bandwidth_block(lab):
    """512 blocks of 1.2 MB: at least 90 % of ib_read_bw."""
    holds(lab, "block", 0.90, 640, 150, 1, 1)


def bandwidth_page(lab):
    """512 pages of 25 KB, four times over: at least 80 % of ib_read_bw."""
    holds(lab, "page", 0.80, 16, 2000, 4, 5)


bandwidth_block.limit = bandwidth_page.limit = 400  # seconds; less than one hundred on a quiet machine

CASES = [bandwidth_block, bandwidth_page]
