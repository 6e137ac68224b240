# SPDX-License-Identifier: Apache-2.0
"""Case: the demo over verbs, the node on one host, the workers and the command line on the other.

deploy/demo/run itself, with shorter prompts and answers: the guest's processor is emulated.
"""
import importlib.machinery
import importlib.util
import os
import urllib.request

from parts import expect

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIRST, LAST, SHARED = 1002, 1274, 192  # of the demo's prompts; they part at byte 1202


def load():
    loader = importlib.machinery.SourceFileLoader("demo_run", os.path.join(ROOT, "deploy/demo/run"))
    spec = importlib.util.spec_from_loader("demo_run", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def shorter_prompts(folder, source):
    for name in os.listdir(source):
        if name.startswith("prompt_"):
            with open(os.path.join(source, name), "rb") as whole, \
                    open(os.path.join(folder, name), "wb") as part:
                part.write(whole.read()[FIRST:LAST])
    with open(os.path.join(folder, "warm_up.txt"), "wb") as file:
        file.write(b"Another text of one block and some bytes, so that all connections are made.\n")


def demo_over_verbs(lab):
    """All steps of the demo, no block over anything but verbs."""
    run = load()
    run.WAIT = 90.0
    http = f"{lab.hosts[1].address}:7602"

    class Demo(run.Demo):
        """Node on the second host."""

        prompts = lab.folder
        shared_bytes = SHARED
        new_tokens = 24
        patience = 120
        moved = 0

        @staticmethod
        def host(name):
            return lab.hosts[1] if name == "node" else lab.hosts[0]

        def place(self, name):
            host = self.host(name)
            flags = []
            if name == "node":
                flags = ["--rdma-devices", host.device, "--http-listen", http]
            elif name.endswith("worker"):
                flags = ["--transport", "verbs", "--fetch-timeout", "10s"]
            return host.prefix(), host.address, flags

        def environment(self, name):
            # Four processes on two emulated processors: an acknowledgement may take a second.
            return dict(self.host(name).environment(), QMLA_RDMA_ACK_TIMEOUT="18")

        def start_all(self):
            """Connected before it counts: the workers give a handshake 1 s, the emulator more."""
            super().start_all()
            for _ in range(3):
                if self.generate("warm_up.txt")["usage"]["blocks_prefilled"] == 1:
                    return

        def second_prompt(self):
            answer = super().second_prompt()
            with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as page:
                for line in page.read().decode().splitlines():
                    if "written_bytes_total" in line and "verbs" in line:
                        self.moved = int(line.split()[-1])
            return answer

    shorter_prompts(lab.folder, run.PROMPTS)
    run.say = lab.note
    demo = Demo(lab.program(""))
    try:
        demo.run()
    finally:
        for process in demo.processes:
            lab.log.write(f"--- {process.name}\n" + "".join(process.tail()))
        demo.stop_all()
    expect(not demo.problems, "; ".join(demo.problems))
    expect(demo.moved > 0, "the node saw no write over verbs")


demo_over_verbs.limit = 600  # seconds; a minute where nobody else uses the processors

CASES = [demo_over_verbs]
