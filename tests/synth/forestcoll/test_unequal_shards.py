"""Collectives of unequal shards: proved, simulated, and as fast as cuts allow."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.compact import check_compact
from jaxcoll.errors import CollectiveError, FormatError, ScheduleError
from jaxcoll.io import json, multitree
from jaxcoll.simulation import simulate
from jaxcoll.simulation.schedules import steady_seconds
from jaxcoll.synth.forestcoll import ForestColl, forest
from jaxcoll.topologies import dgx_a100, mesh, ring
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests.synth.forestcoll.networks import random_switched


def slowest_cut(topology: Topology, shares: tuple[int, ...]) -> Fraction:
    """Seconds per byte of a shard of share 1 over the worst set of vertices, of all there are."""
    worst, n = Fraction(0), topology.num_ranks
    for inside in itertools.product((False, True), repeat=topology.num_vertices):
        if all(inside[:n]):
            continue
        weight = sum(w for w, x in zip(shares, inside, strict=False) if x)
        leaving = sum(
            b
            for u, v, b in zip(topology.src, topology.dst, topology.exact_bandwidth, strict=True)
            if inside[u] and not inside[v]
        )
        if weight:
            worst = max(worst, Fraction(weight) / leaving)
    return worst


@settings(max_examples=25)
@given(random_switched(max_ranks=5), st.data())
def test_they_are_as_fast_as_the_worst_cut_allows(topology, data):
    n = topology.num_ranks
    drawn = st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any)
    shares = tuple(data.draw(drawn))
    kind = data.draw(st.sampled_from(("all_gather", "reduce_scatter", "all_reduce")))
    unit = Collective("all_gather", n, 1, shares=shares)
    assert Collective(kind, n, 1, shares=shares).shares == unit.shares
    best = jc.bounds.optimum(topology, shares)
    chunks = min(best.k, 100)
    schedule = ForestColl().synthesize(topology, Collective(kind, n, chunks, shares=unit.shares))
    verify(schedule)
    assert json.loads(json.dumps(schedule)) == schedule
    ways = {
        "all_gather": (topology,),
        "reduce_scatter": (topology.transpose(),),
        "all_reduce": (topology, topology.transpose()),
    }[kind]
    weights = shares if unit.shares else (1,) * n
    least = [slowest_cut(way, weights) / sum(weights) for way in ways]
    if kind == "all_gather" and chunks == best.k:
        assert steady_seconds(schedule) == least[0]
    assert steady_seconds(schedule) >= max(least)
    assert simulate(schedule, 1e6).exact_time >= max(least) * 10**6


def test_shards_are_as_many_chunks_as_their_share():
    topology, shares = mesh(2, 2), (3, 0, 1, 2)
    schedule = jc.synthesize(
        topology, Collective("all_gather", 4, 64, shares=shares), jc.synth.ForestColl()
    )
    held = schedule.collective.precondition().sum(axis=1)
    assert held.tolist() == [3 * 64, 0, 64, 2 * 64]
    best = jc.bounds.optimum(topology, shares).inverse
    assert steady_seconds(schedule) * 6 == best
    assert simulate(schedule, 1e12).time < 1.1 * float(best) * 1e12 / 6


def test_shares_are_kept_in_lowest_terms():
    assert Collective("all_gather", 2, 3, shares=(2, 4)) == Collective(
        "all_gather", 2, 6, shares=(1, 2)
    )
    assert Collective("reduce_scatter", 2, 3, shares=(5, 5)) == Collective("reduce_scatter", 2, 15)
    turned = Collective("all_gather", 3, 1, shares=(1, 2, 3)).relabel((2, 0, 1))
    assert [int((turned.owner == r).sum()) for r in range(3)] == [2, 3, 1]


def test_a_relabelled_collective_gets_its_own_trees():
    collective = Collective("all_gather", 4, 4, shares=(3, 0, 1, 2)).relabel((2, 3, 1, 0))
    verify(ForestColl().synthesize(ring(4), collective))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("broadcast", 2), "shares are for all_gather, all_reduce, all_to_all, reduce_scatter"),
        (("all_gather", 3), "one number per rank, 3 in all"),
        (("all_gather", 2, 1, ((0,), (1,))), "of one group of all ranks"),
    ],
)
def test_shares_of_other_collectives_are_refused(arguments, message):
    with pytest.raises(CollectiveError, match=message):
        Collective(*arguments, shares=(1, 2))


def test_layers_that_know_equal_shards_only_refuse_others_by_name():
    collective = Collective("all_gather", 3, 1, shares=(1, 2, 3))
    for name in ("ring", "tacos", "multitree"):
        with pytest.raises(CollectiveError, match=f"{name} is defined for equal shards only"):
            jc.synthesize(ring(3), collective, name)
    with pytest.raises(CollectiveError, match="a bound is defined for equal shards only"):
        jc.bound(ring(3), collective, 1e6)
    flow = forest(dgx_a100(2), [1] * 15 + [2])
    with pytest.raises(ScheduleError, match="these trees carry"):
        flow.to_schedule(1, collective=Collective("all_gather", 16, flow.granularity))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_by_default_forestcoll_is_chosen(kind):
    collective = Collective(kind, 4, 6, shares=(3, 0, 1, 2))
    schedule = jc.synthesize(mesh(2, 2), collective)
    assert schedule.provenance.synthesizer == "forestcoll"
    assert schedule.collective == collective
    with pytest.raises(CollectiveError, match="auto is defined for equal shards only"):
        jc.synthesize(mesh(2, 2), collective, jc.synth.Portfolio(names=("tacos",)))


def test_formats_of_equal_shards_refuse_others():
    collective = Collective("all_gather", 4, 1, shares=(3, 0, 1, 2))
    with pytest.raises(FormatError, match="hold equal shards"):
        multitree.dumps(jc.synthesize(mesh(2, 2), collective))
    with pytest.raises(ScheduleError, match="an all_gather of equal shards"):
        check_compact(mesh(2, 2), collective)
