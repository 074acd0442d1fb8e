"""Schedules over links between processes, each in a network namespace of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jaxcoll import topologies
from jaxcoll.emulation import emulate
from tests.emulation.test_emulation import needs_namespaces
from tests.execute.lowerings.player import is_compiled
from tests.execute.meshes.xla_flags import cpu_devices

pytestmark = [
    needs_namespaces,
    pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler"),
]

WORKER = str(Path(__file__).with_name("links_worker.py"))
ONE_DEVICE = {"XLA_FLAGS": cpu_devices(1)}


def test_sums_are_those_of_lax_and_schedules_are_played(capfd):
    network = topologies.ring(3, alpha=0, bandwidth=4e6)
    assert emulate(network, [sys.executable, WORKER], environment=ONE_DEVICE) == 0
    out = capfd.readouterr().out
    said = ("same", "by default", "transposed True")
    assert [out.count(f"] {line}\n") for line in said] == [3, 3, 3]


@pytest.mark.parametrize("how", ["die", "hang"])
@pytest.mark.slow
def test_the_others_end_when_a_rank_does(how, capfd):
    network = topologies.ring(3, alpha=0, bandwidth=4e6)
    environment = {**ONE_DEVICE, "JAXCOLL_TIMEOUT": "3"}
    assert emulate(network, [sys.executable, WORKER, how], environment=environment) == 0
    ended = [line for line in capfd.readouterr().out.splitlines() if "] ended early: " in line]
    assert len(ended) == 2
    assert all("rank 1 (device" in line for line in ended)
