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
    """The best that ib_read_bw does, by its own defaults and with fewer reads posted."""
    return max(ib_read_bw(lab, size, count), ib_read_bw(lab, size, count, "-t", "16"))


def measure(lab, shape, pool, count, rounds):
    node = Node(lab, lab.hosts[1], "--pool-size", pool)
    bench = [lab.program("qmla"), "bench", "rdma", "--nodes", node.address, "--shape", shape]
    size = int(lab.hosts[0].run(*bench, "--print-bytes").stdout.split()[1])
    best = limit(lab, size, count)
    done = lab.hosts[0].run(*bench, "--blocks", BLOCKS, "--rounds", str(rounds), timeout=140)
    lab.log.write(done.stdout + done.stderr)
    expect(done.returncode == 0, f"qmla bench ended with status {done.returncode}: {done.stderr}")
    best = max(best, limit(lab, size, count))
    figures = json.loads(done.stdout)
    expect(figures["transport"] == "verbs", f"measured was {figures['transport']}")
    rate = figures["transfer_gbytes_per_s"] * 1000
    figures.update(ib_read_bw_mbytes_per_s=round(best, 1), ratio=round(rate / best, 3),
                   blocks_ms_at_ib_read_bw=round(int(BLOCKS) * size / best / 1000, 1))
    with open(FIGURES, "a", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")
    print("# " + json.dumps(figures), flush=True)
    return figures


def bandwidth_block(lab):
    """512 blocks of 1.2 MB: at least 90 % of ib_read_bw."""
    figures = measure(lab, "block", "640MiB", 40, 1)
    expect(figures["ratio"] >= 0.90, f"only {figures['ratio']} of ib_read_bw: {figures}")


def bandwidth_page(lab):
    """Pages of 25 KB: at least 80 % of ib_read_bw."""
    figures = measure(lab, "page", "16MiB", 1000, 5)
    expect(figures["ratio"] >= 0.80, f"only {figures['ratio']} of ib_read_bw: {figures}")


CASES = [bandwidth_block, bandwidth_page]
