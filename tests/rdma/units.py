# SPDX-License-Identifier: Apache-2.0
"""Cases: the unit and integration tests' programs, on a real device instead of the fake one."""
import os

from parts import expect


def program(lab, path, *arguments, seconds=140, **environment):
    """Runs a CMocka program of the build on the first host; fails as it does."""
    host = lab.hosts[0]
    done = host.run(os.path.join(lab.binaries, "tests", path), *arguments, timeout=seconds,
                    env=dict(host.environment(), **environment))
    lab.log.write(done.stdout + done.stderr)
    expect(done.returncode == 0, f"{os.path.basename(path)} ended with status {done.returncode}")
    expect("[       OK ]" in done.stdout + done.stderr, "no test ran")


def transport_contract(lab):
    """What transport.h promises, over the device."""
    program(lab, "unit/transport/unit_transport_verbs_test_contract", "verbs",
            QMLA_TEST_RDMA_DEVICES=lab.hosts[0].device)


def transport_fence(lab):
    """Fences against late writers, over the device."""
    program(lab, "unit/transport/unit_transport_verbs_test_fence", "verbs",
            QMLA_TEST_RDMA_DEVICES=lab.hosts[0].device)


CASES = [transport_contract, transport_fence]
