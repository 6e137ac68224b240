# SPDX-License-Identifier: Apache-2.0
"""Hosts inside the guest: network namespaces, each with an RDMA device of its own.

Linux 6.1's Soft-RoCE sends and receives in the initial network namespace only, and its
devices can't be moved out of it. So each host is a namespace for its processes and their
TCP (eth0, 10.1.0.N, all on one bridge), while its RDMA device rxeN sits on vN, 10.0.0.N,
in the initial namespace, where vN is one end of a veth cable to the host's rail. Every
process can see every device, so each is told which one is its own.
"""
import os
import subprocess

MTU = "9000"  # for a path MTU of 4096


def sh(*command, check=True, timeout=60):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """One namespace."""

    def __init__(self, number):
        self.number = number
        self.name = f"h{number}"
        self.address = f"10.1.0.{number}"
        self.netdev = f"v{number}"
        self.rdma_address = f"10.0.0.{number}"
        self.device = f"rxe{number}"

    def prefix(self):
        """What to put before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self.name]

    def environment(self):
        return dict(os.environ, QMLA_RDMA_DEVICES=self.device)

    def popen(self, *command, **more):
        more.setdefault("env", self.environment())
        return subprocess.Popen([*self.prefix(), *command], **more)

    def run(self, *command, timeout=60, **more):
        more.setdefault("env", self.environment())
        return subprocess.run([*self.prefix(), *command], capture_output=True, text=True,
                              timeout=timeout, check=False, **more)

    # -- its rail

    def link(self, state):
        sh("ip", "link", "set", self.netdev, state)

    def readdress(self, address):
        """Gives the rail another address: the device's table of GIDs changes."""
        sh("ip", "addr", "del", f"{self.rdma_address}/24", "dev", self.netdev)
        sh("ip", "addr", "add", f"{address}/24", "dev", self.netdev)
        self.rdma_address = address


def make(count=2):
    """Two hosts and their cable; makes what is missing, once a boot."""
    assert count == 2, "a cable has two ends"
    for name in ("all", "default"):
        # Both addresses are this kernel's own: packets between them must still use the cable.
        sh("sysctl", "-qw", f"net.ipv4.conf.{name}.accept_local=1",
           f"net.ipv4.conf.{name}.rp_filter=0")
    hosts = [Host(number) for number in range(1, count + 1)]
    sh("ip", "link", "add", "br0", "type", "bridge")
    sh("ip", "addr", "add", "10.1.0.254/24", "dev", "br0")
    sh("ip", "link", "set", "br0", "up")
    sh("ip", "link", "add", "name", "v1", "mtu", MTU, "type", "veth",
       "peer", "name", "v2", "mtu", MTU)
    for host in hosts:
        sh("ip", "netns", "add", host.name)
        sh("ip", "-n", host.name, "link", "set", "lo", "up")
        sh("ip", "link", "add", "name", f"c{host.number}", "type", "veth",
           "peer", "name", "eth0", "netns", host.name)
        sh("ip", "link", "set", f"c{host.number}", "master", "br0", "up")
        sh("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
        sh("ip", "-n", host.name, "link", "set", "eth0", "up")
        sh("ip", "addr", "add", f"{host.rdma_address}/24", "dev", host.netdev)
        host.link("up")
        sh("rdma", "link", "add", host.device, "type", "rxe", "netdev", host.netdev)
    return hosts
