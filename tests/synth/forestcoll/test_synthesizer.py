"""ForestColl as a synthesizer: near the optimum in simulated time, and its requirements."""

from __future__ import annotations

from fractions import Fraction

import pytest

from jaxcoll.bounds import throughput
from jaxcoll.bounds.throughput import narrowest, optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.topologies import (
    dgx_a100,
    dgx_h100,
    fat_tree,
    fully_connected,
    mesh,
    mi250,
    nvswitch_hosts,
    ring_fc_switch,
    switch_2d,
    torus,
)
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

GB = 10**9


@pytest.mark.parametrize(
    "topology",
    [dgx_a100(2), dgx_a100(4), dgx_h100(2), dgx_h100(4), mi250(2, ranks=8), torus(4, 4)],
    ids=lambda t: t.name,
)
def test_64_pieces_are_within_five_per_cent_of_the_optimum(topology):
    within(topology, 64, 1.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology", [mi250(2), dgx_a100(8), dgx_h100(8), torus(8, 8)], ids=lambda t: t.name
)
def test_64_pieces_are_within_five_per_cent_of_the_optimum_on_larger_networks(topology):
    within(topology, 64, 1.05)


def within(topology: Topology, pieces: int, ratio: float) -> None:
    n = topology.num_ranks
    chunks = ForestColl().granularity(topology) * pieces
    schedule = ForestColl(pieces=pieces).synthesize(topology, Collective("all_gather", n, chunks))
    verify(schedule)
    best = optimum(topology).inverse * GB / n
    assert best <= simulate(schedule, GB).exact_time <= best * Fraction(str(ratio))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_derived_kinds_are_as_fast(kind):
    topology = dgx_a100(2)
    chunks = ForestColl().granularity(topology) * 16
    schedule = ForestColl().synthesize(topology, Collective(kind, 16, chunks))
    verify(schedule)
    best = float(optimum(topology).inverse) * GB / 16 * (2 if kind == "all_reduce" else 1)
    assert simulate(schedule, GB).time < 1.15 * best


@pytest.mark.slow
def test_fast_refuses_networks_that_take_long_and_no_others():
    """By numbers alone, before any work: the same networks on any machine, each in a moment."""
    fast = ForestColl(fast=True)
    fit = (ring_fc_switch(2, 4, 16), switch_2d(8, 16), fat_tree(4, 4), torus(12, 12), mesh(4, 8))
    for topology in fit:
        collective = Collective("all_gather", topology.num_ranks, 2)
        assert fast.synthesize(topology, collective) == ForestColl().synthesize(
            topology, collective
        )
    for topology in (mesh(12, 12), switch_2d(180, 2)):
        collective = Collective("all_gather", topology.num_ranks, 2)
        with pytest.raises(TopologyError, match=r"in seconds.*fast=False takes the time"):
            fast.synthesize(topology, collective)
    with pytest.raises(
        TopologyError, match=r"a few trees of one root on more.*256 ranks and 0 switches"
    ):
        fast.synthesize(fully_connected(256), Collective("all_gather", 256))


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_broadcasts_from_any_root(kind):
    topology = nvswitch_hosts((3, 2), inside=4e9, network=1e9)
    for root in range(5):
        schedule = ForestColl().synthesize(topology, Collective(kind, 5, 12, root=root))
        verify(schedule)


@pytest.mark.parametrize(
    ("chunks", "k"), [(83, 83), (166, 83), (1, 1), (2, 2), (3, 3), (4, 2), (10, 5), (7, 7)]
)
def test_trees_that_the_chunks_divide_into(chunks, k):
    schedule = ForestColl().synthesize(mi250(2), Collective("all_gather", 32, chunks))
    certificate = schedule.provenance.certificate
    assert certificate["k"] == k
    reached = certificate["seconds per byte of shard"] == certificate["optimum"]
    assert reached == (k == 83)


def test_the_certificate_tells_the_cut_and_the_way():
    schedule = ForestColl().synthesize(dgx_a100(2), Collective("all_gather", 16, 13))
    certificate = schedule.provenance.certificate
    assert certificate["optimum"] == "3/65000000000"
    assert "15 ranks" in str(certificate["cut"])
    assert (certificate["height"], certificate["trees"]) == (2, "packed")


def test_pieces_bundle_chunks():
    collective = Collective("all_gather", 16, 4 * 13)
    single = ForestColl().synthesize(dgx_a100(2), collective)
    bundled = ForestColl(pieces=2).synthesize(dgx_a100(2), collective)
    verify(bundled)
    assert bundled.num_sends == single.num_sends
    assert bundled.num_messages * 2 == single.num_messages


def test_pieces_for_a_size():
    topology = dgx_h100(2)
    collective = Collective("all_gather", 16, 2 * 64)
    messages = []
    for nbytes in (1e3, 1e6, 1e9):
        schedule = ForestColl(nbytes=nbytes).synthesize(topology, collective)
        verify(schedule)
        messages.append(schedule.num_messages)
        for pieces in (1, 64):
            other = ForestColl(pieces=pieces).synthesize(topology, collective)
            assert simulate(schedule, nbytes).time <= simulate(other, nbytes).time
    assert messages == sorted(messages)
    assert messages[0] < messages[-1]


def test_steps_are_few():
    collective = Collective("all_gather", 16, 13 * 4)
    schedule = ForestColl(pieces=4, order="steps").synthesize(dgx_a100(2), collective)
    verify(schedule)
    assert schedule.num_steps == 4 + 2 - 1


def test_bad_fields_are_refused():
    for field in (
        {"k": 0},
        {"k": 1.5},
        {"pieces": 0},
        {"pieces": True},
        {"nbytes": 0},
        {"order": "random"},
    ):
        with pytest.raises(CollectiveError, match=next(iter(field))):
            ForestColl(**field)  # type: ignore[arg-type]
    with pytest.raises(CollectiveError, match="multiple of 4 chunks"):
        ForestColl(k=4).synthesize(torus(3, 3), Collective("all_gather", 9, 6))
    parts = Collective("all_gather", 9, 1, ((0, 1, 2), (3, 4, 5)))
    with pytest.raises(CollectiveError, match="one group, not for"):
        ForestColl().synthesize(torus(3, 3), parts)
    some = Collective("all_reduce", 9, 4, ((0, 1, 2),))
    with pytest.raises(CollectiveError, match="one group of all 9 ranks"):
        ForestColl(phases="joint").synthesize(torus(3, 3).without(links=[(0, 1)]), some)
    lopsided = Topology(2, [0, 2, 1, 2], [2, 1, 2, 0], [0] * 4, [1, 2, 3, 4], 3)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="B/s more"):
        ForestColl().synthesize(lopsided, Collective("all_gather", 2))


def test_the_bottleneck_is_found_once(monkeypatch):
    """One search per synthesis, handed down to every stage."""
    searched = []

    def counted(gathering, targets=None):
        searched.append(gathering.topology)
        return narrowest(gathering, targets)

    monkeypatch.setattr(throughput, "narrowest", counted)
    topology = dgx_a100(2, network=24.5e9)
    chunks = ForestColl().granularity(topology)
    ForestColl().synthesize(topology, Collective("all_gather", 16, chunks))
    ForestColl().synthesize(topology, Collective("all_gather", 16, 2))
    assert searched == [topology]
