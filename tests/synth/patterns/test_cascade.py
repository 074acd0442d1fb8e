"""Cascade: orders of dimensions, links that never rest, and 3D-RFS close to its bound."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import BlueConnect, Cascade, ForestColl, synthesize
from jaxcoll.synth.building.grids import dimension_patterns, dimension_seconds, rank_grid_of
from jaxcoll.synth.patterns.cascade import least_load_orders
from jaxcoll.topologies import (
    dragonfly,
    hypercube,
    mesh,
    ring,
    ring_fc_switch,
    torus,
)
from jaxcoll.verifier import verify
from tests.strategies import grids

RFS = ring_fc_switch(2, 4, 16)
SUM = Collective("all_reduce", 128, 4)


@pytest.mark.parametrize(
    ("nbytes", "of_the_bound"), [(10**3, 1.001), (10**6, 1.125), (10**9, 1.035)]
)
@pytest.mark.slow_members("1000000000*", "1000000-*")
def test_128_ranks_of_3d_rfs_are_close_to_the_bound(nbytes, of_the_bound):
    schedule = Cascade(nbytes).synthesize(RFS, SUM)
    verify(schedule)
    time = simulate(schedule, nbytes).time
    assert time <= of_the_bound * bound(RFS, SUM, nbytes).time
    for other in (BlueConnect(), ForestColl(nbytes=nbytes)):
        assert time <= simulate(other.synthesize(RFS, SUM), nbytes).time


def test_little_data_takes_its_latencies_and_the_slowest_dimension():
    """3D-RFS at 1 MB: boxes sum for 1 us, the last copy is 1 us on the switch and 1 us in a grid.

    Between these the links to the switches, which carry 30 x 1/128 MB each, never rest. Chunks of
    2 KB that are sent first and last take 20 + 10 ns in a grid, and 39 ns more behind the switch.
    """
    time = simulate(Cascade(1e6).synthesize(RFS, SUM), 10**6).time
    least = 3e-6 + 30 / 128 * 1e6 / 50e9
    chunk = 1e6 / 512
    assert time <= least + 2 * chunk * (1 / 100e9 + 1 / 200e9) + 2 * chunk / 50e9 + 1e-12


def test_halves_of_an_all_reduce_overlap():
    for topology in (RFS, torus(4, 4), ring(8), hypercube(4), mesh(3, 4)):
        cascade = Cascade(1e6)
        # The all_gather of 4 chunks keeps every link of the torus busy until all have left.
        chunks = 4 if topology is RFS else 8
        gather, both = (
            simulate(synthesize(topology, kind, cascade, chunks=chunks), 10**6).exact_time
            for kind in ("all_gather", "all_reduce")
        )
        assert both < 2 * gather


@pytest.mark.parametrize("topology", [torus(2, 4), torus(4, 4), ring(6)], ids=str)
def test_the_chunks_to_the_rank_opposite_load_both_directions_equally(topology):
    """All of a rank's took one direction, and half of the links carried a tenth more."""
    schedule = Cascade(2**18).synthesize(topology, Collective("all_gather", topology.num_ranks, 16))
    load = np.bincount(schedule.edge, minlength=topology.num_links)
    sides = topology.placement.grid.coordinates()
    along = (sides[topology.src] != sides[topology.dst]).argmax(axis=1)
    for dimension in set(along.tolist()):
        assert np.ptp(load[along == dimension]) <= 1  # of an odd number, one direction has one more


def test_a_buffer_of_middle_size_takes_hardly_longer_than_the_bound():
    topology = torus(2, 4, alpha=0.5e-6, bandwidth=50e9)
    for kind, of_the_bound in (("all_gather", 1.004), ("reduce_scatter", 1.004)):
        schedule = synthesize(topology, kind, Cascade(2**18), chunks=64)
        time = simulate(schedule, 2**18).time
        assert time <= of_the_bound * bound(topology, kind, 2**18).time


@settings(max_examples=50)
@given(grids(max_ranks=24), st.integers(1, 4), st.sampled_from([10, 10**4, 10**8]))
def test_no_link_rests_while_a_chunk_waits_for_it(topology, chunks, nbytes):
    """On direct networks every send starts as it arrives, or as the send before it has left."""
    collective = Collective("all_gather", topology.num_ranks, chunks)
    schedule = Cascade(nbytes).synthesize(topology, collective)
    timeline = simulate(schedule, nbytes)
    arrived = np.where(collective.precondition(), 0.0, np.inf)
    arrived[schedule.dst, schedule.chunk] = timeline.end
    ready = arrived[schedule.src, schedule.chunk]
    link = schedule.edges.first_link[schedule.edge]
    order = np.lexsort((timeline.start, link))
    free = timeline.start + np.repeat(
        timeline.clock.seconds(timeline.hop_busy), np.diff(schedule.message_ptr)
    )
    before = np.append(0.0, free[order][:-1])
    before[np.append(True, np.diff(link[order]) > 0)] = 0.0
    start = timeline.start[order]
    assert np.allclose(start, np.maximum(before, ready[order]), rtol=1e-9, atol=0)


def test_orders_by_hand():
    """Sides 16, 4, 2 of 3D-RFS take 30, 1 and 1/2 for a byte in units of 10 ps.

    A chunk that starts on the switches leaves 16 bytes: (30, 16, 64 / 2) with the circle last, and
    (30, 32, 16 / 2), less in all, with the circle second. The second chunk makes that (60, 64, 16)
    or (60, 48, 40), the third (90, 80, 48) or (90, 64, 72), the fourth (120, 112, 56).
    """
    side = {0: 16, 1: 4, 2: 2}
    seconds = {0: Fraction(30), 1: Fraction(1), 2: Fraction(1, 2)}
    orders = least_load_orders(side, seconds, 4)
    assert orders == [(0, 2, 1), (0, 1, 2), (0, 2, 1), (0, 2, 1)]


SIDES = st.lists(st.integers(2, 9), min_size=1, max_size=4)


@given(SIDES, st.data(), st.integers(1, 6))
def test_orders_load_no_dimension_more_than_the_best_order_alone(sides, data, chunks):
    side = dict(enumerate(sides))
    seconds = {d: Fraction(data.draw(st.integers(1, 50)), 7) for d in side}

    def load(orders) -> dict[int, Fraction]:
        total = dict.fromkeys(side, Fraction(0))
        for order in orders:
            for i, d in enumerate(order):
                total[d] += seconds[d] * int(np.prod([side[e] for e in order[:i]]))
        return total

    chosen = least_load_orders(side, seconds, chunks)
    assert len(chosen) == chunks
    assert all(sorted(order) == sorted(side) for order in chosen)
    first = max(load(chosen[:1]).values())
    assert max(load(chosen).values()) <= chunks * first


def test_seconds_of_lines_by_hand():
    """15 blocks leave a rank for its switch, one crosses each other link of a clique or a pair.

    On a circle of 4 one and a half go each way, on an open line of 4 three cross the last link.
    """
    rank_grid = rank_grid_of(RFS, "here")
    patterns = dimension_patterns(RFS, rank_grid, (0, 1, 2), close=False)
    seconds = [dimension_seconds(RFS, rank_grid, dim, patterns[dim]) for dim in range(3)]
    giga = 10**9
    assert seconds == [Fraction(15, 50 * giga), Fraction(1, 100 * giga), Fraction(1, 200 * giga)]
    for topology, blocks in ((ring(4), Fraction(3, 2)), (mesh(4), Fraction(3))):
        rank_grid = rank_grid_of(topology, "here")
        pattern = dimension_patterns(topology, rank_grid, (0,), close=False)[0]
        assert dimension_seconds(topology, rank_grid, 0, pattern) == blocks / (50 * giga)


def test_open_lines_are_not_closed():
    for topology in (mesh(3, 4), mesh(2, 5)):
        schedule = synthesize(topology, "all_reduce", Cascade(), chunks=2)
        assert (schedule.edges.hops == 1).all()


def test_many_dimensions_are_not_permuted():
    orders = least_load_orders(
        dict.fromkeys(range(12), 2), dict.fromkeys(range(12), Fraction(1)), 12
    )
    assert {order[-1] for order in orders} == set(range(12))  # every one is the busiest once


@pytest.mark.parametrize("nbytes", [0, -1, float("nan"), float("inf"), "1"])
def test_bad_sizes_are_refused(nbytes):
    with pytest.raises(CollectiveError, match="nbytes"):
        Cascade(nbytes)


def test_networks_that_are_no_boxes_are_refused():
    with pytest.raises(TopologyError, match="cascade needs a network of symmetric dimensions"):
        synthesize(dragonfly(4, 5), "all_reduce", "cascade")
    halves = Collective("all_gather", 4, 1, ((0, 3), (1, 2)))
    with pytest.raises(CollectiveError, match="cascade needs groups that are subgrids"):
        Cascade().synthesize(torus(2, 2), halves)
