"""SCCL: known optima, an exhaustive search as the oracle, and the errors."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds import step_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.synth import Sccl, Tacos, synthesize
from jaxcoll.topologies import (
    dgx1,
    fully_connected,
    hypercube,
    mesh,
    ring,
    star,
    switch,
    torus,
)
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies


def search(topology: Topology, collective: Collective, **fields) -> tuple[int, int]:
    """Steps and rounds; the schedule proved, and both checked against its sends."""
    schedule = Sccl(**fields).synthesize(topology, collective)
    verify(schedule)
    said = schedule.provenance.certificate
    assert said["gap"] == 0.0
    assert schedule.num_steps <= int(str(said["steps"]))
    links = schedule.edges.first_link[schedule.edge].tolist()
    carried: dict[tuple[int, int], int] = {}
    for step, link in zip(schedule.step.tolist(), links, strict=True):
        carried[step, link] = carried.get((step, link), 0) + 1
    unit = math.gcd(*(int(b) for b in topology.bandwidth))
    rounds = [0] * schedule.num_steps
    for (step, link), count in carried.items():
        rounds[step] = max(rounds[step], math.ceil(count * unit / topology.bandwidth[link]))
    assert sum(rounds) <= int(str(said["rounds"]))
    return int(str(said["steps"])), int(str(said["rounds"]))


@pytest.mark.parametrize(
    ("topology", "chunks", "steps", "rounds"),
    [
        *((ring(n), 1, n // 2, n // 2) for n in (3, 4, 5, 6, 7, 9)),
        *((ring(n, bidirectional=False), 1, n - 1, n - 1) for n in (3, 5)),
        # All links bring what is new in every step: (n - 1) / degree rounds.
        *((hypercube(d), 1, d, math.ceil((2**d - 1) / d)) for d in (1, 2, 3)),
        (hypercube(3), 3, 3, 7),
        *((fully_connected(n), 2, 1, 2) for n in (3, 5, 8)),
        (torus(3, 3), 1, 2, 2),
        pytest.param(torus(4, 4), 1, 4, 4, marks=pytest.mark.slow),
        (mesh(3, 3), 1, 4, 4),
        (star(5), 1, 2, 4),
        # NVLinks bring 6 chunks per round: 7 k / 6 rounds at least, and two steps to the farthest.
        (dgx1(merged=True), 1, 2, 2),
        (dgx1(merged=True), 2, 2, 3),
    ],
    ids=str,
)
def test_known_optima(topology, chunks, steps, rounds):
    collective = Collective("all_gather", topology.num_ranks, chunks)
    assert search(topology, collective, most_ranks=16) == (steps, rounds)


@pytest.mark.slow
def test_dgx1_trades_latency_for_bandwidth():
    collective = Collective("all_gather", 8, 6)
    found = [search(dgx1(merged=True), collective, steps=steps) for steps in (2, 3)]
    # Three steps suffice for all the bandwidth there is: 7 rounds of 6 chunks for 42.
    assert found == [(2, 9), (3, 7)]


def fewest_steps(topology: Topology, collective: Collective) -> int:
    """By trying everything: in each step each link carries one chunk that its source has."""
    holds, wants = collective.precondition(), collective.postcondition()
    n, chunks = topology.num_ranks, collective.num_chunks
    links = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    goal = {(v, c) for v in range(n) for c in range(chunks) if wants[v, c]}
    states = {frozenset((v, c) for v in range(n) for c in range(chunks) if holds[v, c])}
    for steps in itertools.count():
        if any(goal <= state for state in states):
            return steps
        following = set()
        for state in states:
            choices = [
                [(v, c) for c in range(chunks) if (u, c) in state and (v, c) not in state] or [None]
                for u, v in links
            ]
            following |= {state | set(sent) - {None} for sent in itertools.product(*choices)}
        states = {s for s in following if not any(s < other for other in following)}
    raise AssertionError


@settings(max_examples=30)
@given(
    strategies.topologies(max_ranks=4, homogeneous=True, parallel=False).filter(
        lambda t: t.num_links <= 6
    ),
    st.sampled_from(["all_gather", "broadcast", "scatter", "gather"]),
)
def test_the_fewest_steps_are_those_of_an_exhaustive_search(topology, kind):
    collective = Collective(kind, topology.num_ranks)
    steps, rounds = search(topology, collective, rounds=1)
    assert steps == rounds == fewest_steps(topology, collective)


@settings(max_examples=40)
@given(strategies.topologies(max_ranks=6, homogeneous=True), st.integers(1, 2))
def test_between_the_bound_and_a_heuristic(topology, chunks):
    collective = Collective("all_gather", topology.num_ranks, chunks)
    steps, _ = search(topology, collective, rounds=1)
    assert step_bound(topology, collective) <= steps
    assert steps <= Tacos(attempts=2).synthesize(topology, collective).num_steps


@settings(max_examples=15)
@given(strategies.topologies(max_ranks=5))
def test_more_steps_need_no_more_rounds(topology):
    collective = Collective("all_gather", topology.num_ranks, 2)
    least, rounds = search(topology, collective)
    for steps in range(least + 1, least + 3):
        following = search(topology, collective, steps=steps)[1]
        assert following - steps <= rounds - least  # a step without sends still lasts a round
        rounds, least = following, steps


def test_links_of_unequal_bandwidth_carry_unequally():
    # A way round of 3 units and back of 1: three chunks in one round, or one.
    topology = Topology(2, [0, 1], [1, 0], [0.0, 0.0], [3e9, 1e9])  # type: ignore[arg-type]
    assert search(topology, Collective("broadcast", 2, 3, root=0)) == (1, 1)
    assert search(topology, Collective("broadcast", 2, 3, root=1)) == (1, 3)


def test_what_cannot_be_is_said():
    with pytest.raises(CollectiveError, match="in 1 steps of any number of rounds: there is none"):
        Sccl(steps=1).synthesize(ring(5), Collective("all_gather", 5))
    with pytest.raises(CollectiveError, match="in 2 steps of 1 rounds: there is none"):
        Sccl(steps=2, rounds=1).synthesize(ring(5), Collective("all_gather", 5, 2))
    with pytest.raises(CollectiveError, match="the time ran out"):
        Sccl(rounds=1, seconds=1e-9).synthesize(mesh(3, 3), Collective("all_gather", 9, 5))
    with pytest.raises(TopologyError, match="sccl is for tiny networks, of up to 9 ranks"):
        Sccl().synthesize(ring(10), Collective("all_gather", 10))
    with pytest.raises(TopologyError, match="sccl knows no switches"):
        Sccl().synthesize(switch(4), Collective("all_gather", 4))
    for fields in (
        {"steps": 0},
        {"rounds": 1.5},
        {"seconds": 0},
        {"seconds": True},
        {"most_ranks": 0},
    ):
        with pytest.raises(CollectiveError, match=next(iter(fields))):
            Sccl(**fields)  # type: ignore[arg-type]


def two_ranks(there: float, back: float) -> Topology:
    """Two ranks and a link each way, of two speeds."""
    graph = nx.DiGraph()
    graph.add_edge(0, 1, bandwidth=there)
    graph.add_edge(1, 0, bandwidth=back)
    return Topology.from_networkx(graph, alpha=0.0)


def test_bandwidths_that_only_a_tiny_unit_divides_are_rounded():
    """1.4994 times as much is taken for 3/2: six chunks on the slow link take three rounds."""
    topology = two_ranks(1.8064522023139822, 1.2048120516375003)
    found = synthesize(topology, "all_gather", Sccl(), chunks=6).provenance.certificate
    assert (found["steps"], found["rounds"], found["exact"]) == (1, 3, False)


@pytest.mark.parametrize("name", ["sccl", "step_milp"])
@pytest.mark.parametrize("speeds", [(1e12, 1e-9), (1e100, 1e-100), (1e12, 1.0)])
def test_speeds_far_apart_are_scaled_or_refused(name, speeds):
    topology = two_ranks(*speeds)
    if name == "sccl":
        assert synthesize(topology, "all_gather", name).num_steps == 1
    else:
        with pytest.raises(TopologyError, match="too far apart"):
            synthesize(topology, "all_gather", name)


@pytest.mark.parametrize("name", ["sccl", "step_milp"])
def test_many_chunks_are_refused_before_anything_is_built(name):
    with pytest.raises((TopologyError, CollectiveError), match="take at most 22369621 chunks"):
        synthesize(ring(4), "broadcast", name, chunks=2**31 - 1)
