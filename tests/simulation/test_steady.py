"""Steady throughput: the busiest link, counted by hand, and the limit of simulated times."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given

from jaxcoll import Collective, simulate
from jaxcoll.bounds import optimum
from jaxcoll.simulation import steady_seconds
from jaxcoll.synth import ForestColl, Ring
from jaxcoll.topologies import dgx_a100, ring, torus
from tests import strategies


@given(strategies.schedules())
def test_it_is_the_busiest_link(schedule):
    sizes, load = schedule.collective.chunk_bytes(1), Counter()
    for edge, chunk in zip(schedule.edge.tolist(), schedule.chunk.tolist(), strict=True):
        for link in schedule.edges.path(edge):
            load[link] += sizes[chunk]
    speed = schedule.topology.exact_bandwidth
    worst = max((Fraction(x) / speed[link] for link, x in load.items()), default=Fraction(0))
    assert steady_seconds(schedule) == worst
    assert simulate(schedule, 10**6).time >= float(worst * 10**6) * (1 - 1e-12)


def test_closed_forms():
    # Each link of a bidirectional ring carries half of the other ranks' chunks.
    around = Ring().synthesize(ring(5, bandwidth=2e9), Collective("all_gather", 5))
    assert steady_seconds(around) == Fraction(2, 5) / (2 * 10**9)
    for topology in (dgx_a100(2), torus(3, 3)):
        best, n = optimum(topology), topology.num_ranks
        forest = ForestColl().synthesize(topology, Collective("all_gather", n, best.k))
        assert steady_seconds(forest) == best.inverse / n


def test_nothing_to_carry():
    alone = Ring().synthesize(torus(1, 2), Collective("all_gather", 2, 1, ((0,), (1,))))
    assert steady_seconds(alone) == 0
