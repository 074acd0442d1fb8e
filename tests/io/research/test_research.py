"""Files of msccl-tools, TACCL, TE-CCL and ForestColl: read back whole, or the loss is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError
from jaxcoll.io import forestcoll, sccl, teccl
from tests.io.mutations import refuses
from tests.io.research.losses import unless_named
from tests.strategies import topologies

RING = jc.topologies.ring(4)
SWITCH = jc.topologies.switch(4)
KINDS = ("all_gather", "all_to_all", "broadcast", "gather", "scatter")
TACCL = {
    "name": "pair", "gpus_per_node": 2, "nics_per_node": 1, "alpha": 0.5,
    "links": [[0, 1], [1, 0]], "betas": [[0, 20], [40, 0]], "invbws": [[0, 20.5], [40.5, 0]],
    "remote_alpha": 2.5, "remote_beta": 100, "remote_invbw": 102.5,
}  # fmt: skip
TREES = """<Algo nchunkspernode="1">
  <tree root="(0, 'GPU', 0)" index="0" nchunks="1" height="1">
    <send src="(0, 'GPU', 0)" dst="(1, 'GPU', 0)"
      path="(0, 'GPU', 0),(0, 'NVSwitch', 0), (1, 'GPU', 0)"/>
  </tree>
  <tree root="(1, 'GPU', 0)" index="0" nchunks="1" height="1">
    <send src="(1, 'GPU', 0)" dst="(0, 'GPU', 0)"
      path="(1, 'GPU', 0),(0, 'NVSwitch', 0),(0, 'GPU', 0)"/>
  </tree>
</Algo>
"""
FLOWS = {
    "1-Epoch_Duration": 1e-6,
    "3-Epochs_Required": 1,
    "7-Flows": [
        f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0 via switches 2"
        for a, b in ((0, 1), (1, 0))
    ],
}


def made(network, kind, chunks=1, name="auto"):
    rooted: dict[str, Any] = {"root": 1} if kind in ("broadcast", "gather", "scatter") else {}
    return jc.synthesize(network, kind, name, nbytes=1e6, chunks=chunks, **rooted)


def sends(schedule):
    columns = (schedule.step, schedule.edge, schedule.chunk)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(step, schedule.edges.path(edge), chunk) for step, edge, chunk in rows]


def round_trips(read, schedule):
    assert sends(read) == sends(schedule)
    assert (read.topology, read.collective) == (schedule.topology, schedule.collective)
    jc.verify(read)


# ---------------------------------------------------------------------- SCCL, msccl-tools, TACCL


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", sccl.DIALECTS)
def test_schedules_of_sccl(kind, dialect):
    # On a ring the others go over paths of several links.
    network = RING if kind == "all_gather" else jc.topologies.fully_connected(4)
    schedule = made(network, kind, 2, "tacos" if kind == "all_gather" else "direct")
    text = sccl.dumps(schedule, dialect)
    round_trips(sccl.loads(text), schedule)
    assert f'"{dialect}_type": "algorithm"' in text
    longer = json.loads(text)
    for step in longer["steps"]:
        step["sends"] = [[*send, 0.5, 0] for send in step["sends"]]  # as TACCL writes them
    round_trips(sccl.loads(json.dumps(longer)), schedule)


def test_links_are_by_destination_and_source():
    text = json.dumps({"msccl_type": "topology", "name": "x", "links": [[0, 2], [1, 0]]})
    network = sccl.loads(text, alpha=1e-6, bandwidth=10e9)
    assert isinstance(network, jc.Topology)
    assert list(zip(network.src.tolist(), network.dst.tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert network.bandwidth.tolist() == [10e9, 20e9]
    with pytest.warns(AssumptionWarning, match=r"0\.7 us, 25 GB/s"):
        sccl.loads(text)


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (SWITCH, "no switches"),
        (RING.scaled({(0, 1): 0.7}), "whole multiples"),
        (jc.Topology(2, np.asarray([0, 1]), np.asarray([1, 0]), np.asarray([1e-6, 2e-6]),
                     np.asarray([1e9, 1e9])), "2 latencies"),
        (made(RING, "all_reduce"), "a reduction"),
        (made(RING, "all_to_all", name="direct"), "not over paths"),
    ],
)  # fmt: skip
def test_what_sccl_cannot_hold_is_named(obj, words):
    with pytest.raises(FormatError, match=words):
        sccl.dumps(obj)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"msccl_type": "step"}, "expected a topology or an algorithm"),
        ({"links": [[0, 1]]}, "must be a square"),
        ({"links": [[0, -1], [1, 0]]}, r"links\[0\]\[1\] must be an integer"),
        ({"switches": [[[0], [1], 1, "s"]]}, "limit several links together"),
        ({"links": [[0, 0], [1, 0]]}, "refused"),
    ],
)
def test_other_networks_of_sccl_are_refused(change, words):
    whole = {"msccl_type": "topology", "name": "x", "links": [[0, 2], [1, 0]], **change}
    with pytest.raises(FormatError, match=words):
        sccl.loads(json.dumps(whole), alpha=1e-6, bandwidth=1e9)


def test_taccl_needs_the_size_of_its_message():
    network = sccl.topology(json.dumps(TACCL), 1e6)
    ends = zip(network.src.tolist(), network.dst.tolist(), network.bandwidth.tolist(), strict=True)
    # 20 us for 1 MB is 50 GB/s; rows are destinations.
    assert list(ends) == [(0, 1, 25e9), (1, 0, 50e9)]
    assert sccl.topology(json.dumps(TACCL), 2e6).bandwidth.tolist() == [50e9, 100e9]
    assert set(network.alpha) == {0.5e-6}
    two = sccl.topology(json.dumps(TACCL), 1e6, hosts=2)
    assert (two.num_ranks, two.num_vertices) == (4, 7)
    for change, words in (
        ({"nics_per_node": -1}, "no NICs"), ({"betas": [[0, 0], [0, 0]]}, "must be above 0"),
        ({"links": 3}, "must be a list"), ({"gpus_per_node": 3}, "square of 3"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=words):
            sccl.topology(json.dumps(TACCL | change), 1e6, hosts=2)
    without = {key: value for key, value in TACCL.items() if key != "links"}
    with pytest.raises(FormatError, match="node_betas_list"):
        sccl.topology(json.dumps(without), 1e6)


# ---------------------------------------------------------------------- TE-CCL


@pytest.mark.parametrize(
    ("name", "chassis", "ranks", "links"),
    [("DGX1", 1, 8, 32), ("NDv2", 1, 8, 32), ("NDv2", 2, 16, 66),
     pytest.param("NDv2", 4, 32, 136, marks=pytest.mark.slow),
     ("DGX2", 2, 32, 80), ("AMD", 1, 16, 56), ("Mesh", 1, 9, 28)],
)  # fmt: skip
def test_networks_of_teccl(name, chassis, ranks, links):
    network = teccl.network(name, chassis, side_length=3)
    assert (network.num_ranks, network.num_links) == (ranks, links)
    said = {"name": name.upper(), "chassis": chassis, "alpha": [0.7e-6, 1.3e-6], "side_length": 3}
    assert teccl.loads(json.dumps({"TopologyParams": said, "GurobiParams": {}})) == network
    schedule = made(network, "all_gather", 1, "tacos")
    round_trips(teccl.loads_schedule(teccl.dumps(schedule, 1e6), network), schedule)


def test_numbers_of_teccl_are_its_own():
    """In NDv2 of more than two hosts, number 0 is the switch; flows are in its numbers."""
    network = teccl.network("NDv2", 4)
    assert network.vertex_names[0] == "1"
    assert network.vertex_names[-1] == "0"
    text = teccl.dumps(made(network, "all_gather", 1, "tacos"), 1e6)
    assert "via switches 0" in text
    assert "over 0->" not in text


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_schedules_of_teccl_over_switches(kind):
    schedule = made(SWITCH, kind, 2, "direct")
    round_trips(teccl.loads_schedule(teccl.dumps(schedule, 1e6), SWITCH), schedule)
    own = json.loads(teccl.dumps(schedule, 1e6))
    assert own["4-Collective_Finish_Time"] == jc.simulate(schedule, 1e6).time
    del own["0-Collective"]
    round_trips(teccl.loads_schedule(json.dumps(own), SWITCH, kind), schedule)


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ("Chunk 0 from 0 traveled over 0->1 in epoch 0", "no link 0->1"),
        ("0.5 of chunk 0 from 0", "parts of chunks"),
        ("Chunk 0 from 9 traveled over 9->1 in epoch 0", "no vertex 9"),
        ("Chunk 0 from 2 traveled over 2->1 in epoch 0", "not at switches"),
        ("Chunk 9999999 from 0 traveled over 0->1 in epoch 0 via switches 2", "0 to a few"),
    ],
)
def test_other_flows_are_refused(flow, words):
    pair = jc.topologies.switch(2)
    jc.verify(teccl.loads_schedule(json.dumps(FLOWS), pair))
    with pytest.raises(FormatError, match=words):
        teccl.loads_schedule(json.dumps(FLOWS | {"7-Flows": [flow]}), pair)


def test_what_teccl_cannot_hold_is_named():
    for schedule, words in (
        (made(RING, "all_reduce"), "all_gather or all_to_all"),
        (made(RING, "all_to_all", name="direct"), "a path leads over rank"),
    ):
        with pytest.raises(FormatError, match=words):
            teccl.dumps(schedule, 1e6)
    with pytest.raises(FormatError, match="chassis=2"):
        teccl.network("DGX2")


# ---------------------------------------------------------------------- ForestColl


@pytest.mark.parametrize("network", [RING, SWITCH, jc.topologies.dgx_h100(2)])
def test_trees_of_forestcoll(network):
    trees = jc.synth.forest(network)
    text = forestcoll.dumps(trees)
    read = forestcoll.loads(text, network)
    assert (read.k, read.inverse, read.num_trees) == (trees.k, trees.inverse, trees.num_trees)
    assert sorted(read.load) == sorted(trees.load)
    assert forestcoll.dumps(read) == text
    jc.verify(read.to_schedule(1))


def test_names_with_commas_are_read_by_brackets():
    network = jc.topologies.switch(2)
    trees = forestcoll.loads(TREES, network)
    assert (trees.k, trees.num_trees, trees.heights.tolist()) == (1, 2, [1, 1])


test_other_trees_are_refused = refuses(
    lambda text: forestcoll.loads(text, jc.topologies.switch(2)), FormatError, TREES, "forestcoll"
)


def test_what_are_no_trees_is_named():
    with pytest.raises(FormatError, match="all_gather"):
        forestcoll.dumps(made(RING, "all_reduce"))
    with pytest.raises(FormatError, match="2 GPUs"):
        forestcoll.loads(TREES, RING)


# ---------------------------------------------------------------------- at random


def survives(network):
    """Whole, or with the loss named, through every format."""
    lost = ("switches", "latencies", "multiples", "digits", "paths of several")
    with unless_named(*lost):
        assert sccl.loads(sccl.dumps(network)) == network
    schedule = made(network, "all_gather", 1, "tacos")
    with unless_named(*lost):
        round_trips(sccl.loads(sccl.dumps(schedule)), schedule)
    with unless_named("parallel"):
        round_trips(teccl.loads_schedule(teccl.dumps(schedule, 1000), network), schedule)
    with unless_named("parallel"):
        jc.verify(forestcoll.loads(forestcoll.dumps(schedule), network).to_schedule(1))


@settings(deadline=None, max_examples=20)
@given(topologies(max_ranks=8, switches=True))
def test_networks_and_schedules_survive(network):
    survives(network)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(topologies(max_ranks=8, switches=True))
def test_a_thousand_networks_and_schedules_survive(network):
    survives(network)
