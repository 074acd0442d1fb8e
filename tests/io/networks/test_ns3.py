"""Topology files of ns-3 simulators, SimAI's and HPCC's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError
from jaxcoll.io import ns3
from tests.cli.calls import called, refused
from tests.io.mutations import refuses
from tests.io.networks import printed


def test_servers_of_simai_are_hosts_of_the_family():
    made = ns3.loads(printed.SIMAI)
    names = ("host 0 gpu 0", "host 0 gpu 1", "host 1 gpu 0", "host 1 gpu 1")
    assert made.vertex_names == (*names, "NVSwitch 0", "NVSwitch 1", "switch 0")
    family = jc.topologies.nvswitch_hosts(
        (2, 2), inside=360e9, network=50e9, alpha=25e-9, network_alpha=0.5e-6
    )
    for kind in ("all_reduce", "all_to_all"):
        times = [jc.bound(each, kind, 1e9).time for each in (made, family)]
        assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_switches_may_have_any_numbers():
    """As HPCC writes them: the ranks are all others, in their order."""
    made = ns3.loads(printed.HPCC)
    assert made.vertex_names == ("rank 0", "rank 1", "rank 2", "switch 0")
    ends = zip(made.src.tolist(), made.dst.tolist(), strict=True)
    speeds = dict(zip(ends, made.bandwidth.tolist(), strict=True))
    assert speeds == {(r, 3): s for r, s in enumerate((12.5e9, 12.5e9, 3.125e9))} | {
        (3, r): s for r, s in enumerate((12.5e9, 12.5e9, 3.125e9))
    }
    assert sorted(set(made.alpha.tolist())) == [pytest.approx(0.5e-6), pytest.approx(1e-6)]


@given(st.integers(2, 6), st.integers(0, 3), st.data())
def test_every_network_of_cables_is_read(ranks, switches, data):
    """Of cables that join all vertices in a ring, and any more, with switches at any numbers."""
    vertices = ranks + switches
    numbers = data.draw(st.permutations(range(vertices)))
    switch_numbers = sorted(numbers[:switches])
    more = data.draw(st.lists(st.tuples(*[st.integers(0, vertices - 1)] * 2), max_size=5))
    cables = [(i, (i + 1) % vertices) for i in range(vertices)]
    cables += [(a, b) for a, b in more if a != b]
    text = f"{vertices} {switches} {len(cables)}\n{' '.join(map(str, switch_numbers))}\n"
    text += "".join(f"{a} {b} {i + 1}Gbps {i}ns 0\n" for i, (a, b) in enumerate(cables))
    made = ns3.loads(text)
    order = [n for n in range(vertices) if n not in switch_numbers] + switch_numbers
    found = [
        (order[a], order[b], round(speed * 8e-9), round(alpha * 1e9))
        for a, b, speed, alpha in zip(made.src, made.dst, made.bandwidth, made.alpha, strict=True)
    ]
    stated = [(a, b, i + 1, i) for i, (a, b) in enumerate(cables)]
    assert sorted(found) == sorted([*stated, *((b, a, v, d) for a, b, v, d in stated)])


@pytest.mark.parametrize(
    ("rate", "speed"),
    [("400Gbps", 50e9), ("1Tbps", 125e9), ("100Mb/s", 12.5e6), ("8Kibps", 1024), ("2GBps", 2e9),
     ("2.5e3Mbps", 312.5e6), ("80bps", 10)],
)  # fmt: skip
def test_rates_are_those_of_ns3(rate, speed):
    made = ns3.loads(f"2 0 1\n\n0 1 {rate} 1ms 0\n")
    assert np.allclose(made.bandwidth, speed)


def test_error_rates_are_passed_over_and_said():
    with pytest.warns(AssumptionWarning, match="error rates"):
        ns3.loads(printed.SIMAI.replace("ms 0\n", "ms 0.001\n", 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ns3.loads(printed.HPCC)


test_other_text_is_refused = refuses(ns3.loads, FormatError, printed.SIMAI, "ns3")


def test_commands_take_a_file_where_a_network_stands(tmp_path, capsys):
    path = tmp_path / "topology"
    path.write_text(printed.SIMAI.replace("\n", "\r\n"))
    assert called(capsys, "bound", path)[0] == 0
    assert "a file states the speeds of its links" in refused(
        capsys, "bound", path, "--bandwidth", "1GB/s"
    )
    path.write_text("1 2 3\n4 5 6\n")  # numbers alone are of no format
    assert "no known format" in refused(capsys, "bound", path)
