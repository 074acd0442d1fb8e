"""Trees: the load count against a plain one, the errors, and schedules made of trees."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.collective import Collective
from jaxcoll.errors import ScheduleError
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.simulation import simulate
from jaxcoll.topologies import fully_connected, ring, switch
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow
from jaxcoll.verifier import verify


def both_ways(n: int, k: int = 1, bandwidth: float = 1e9) -> TreeFlow:
    """On a ring of n: each shard goes half way round each way, in k equal trees per rank."""
    topology = ring(n, bandwidth=bandwidth)
    pairs = {
        (int(u), int(v)): e for e, (u, v) in enumerate(zip(topology.src, topology.dst, strict=True))
    }
    edge = []
    for root in range(n):
        up = [(root + i) % n for i in range(n // 2 + 1)]
        down = [(root - i) % n for i in range((n - 1) // 2 + 1)]
        edge += [pairs[u, v] for way in (up, down) for u, v in itertools.pairwise(way)]
    return TreeFlow(
        topology,
        k,
        (k,) * n,
        np.arange(n),
        np.full(n, k),
        Edges.from_links(topology),
        np.arange(n + 1) * (n - 1),
        np.asarray(edge),
        Fraction(n // 2, int(bandwidth)),
    )


def star(n: int) -> TreeFlow:
    """Around a switch: every root sends to everyone itself."""
    topology = switch(n, bandwidth=1e9)
    src, dst = np.divmod(np.arange(n * n), n)
    apart = src != dst
    edges = shortest_routes(topology, src[apart], dst[apart])
    return TreeFlow(
        topology, 1, (1,) * n, np.arange(n), np.ones(n, int), edges,
        np.arange(n + 1) * (n - 1), np.arange(n * (n - 1)), Fraction(n - 1, 10**9),
    )  # fmt: skip


def change(flow: TreeFlow, **columns) -> TreeFlow:
    return dataclasses.replace(flow, **columns)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 2), (5, 1), (8, 3)])
def test_trees_of_a_ring(n, k):
    flow = both_ways(n, k)
    assert flow.check_load() == flow.inverse
    assert (flow.height, flow.mean_height, flow.granularity) == (n // 2, n // 2, 1)
    assert flow.load == tuple(
        k * (n // 2 if (v - u) % n == 1 else (n - 1) // 2)
        for u, v in zip(flow.topology.src, flow.topology.dst, strict=True)
    )


def test_loads_count_paths_through_switches():
    flow = star(5)
    assert flow.check_load() == Fraction(4, 10**9)
    assert flow.load == (4,) * 10
    assert (flow.height, "5 trees" in repr(flow)) == (1, True)


def test_the_verifier_counts_trees_too():
    flow = both_ways(4)
    verify(flow)
    with pytest.raises(ScheduleError, match="not 1/250000000"):
        verify(change(flow, inverse=flow.inverse * 2))


def test_weights_beyond_machine_integers_are_counted_exactly():
    k = 2**60
    flow = both_ways(8, k)
    assert flow.check_load() == flow.inverse
    assert max(flow.load) == 4 * k


def test_every_fault_is_named():
    flow = both_ways(5)
    edge = np.asarray(flow.edge)
    twice = edge.copy()
    twice[1] = twice[0]
    late = edge.copy()
    late[[0, 1]] = late[[1, 0]]
    for wrong, text in (
        ({"edge": twice}, "tree 0 of root 0 takes edge"),
        ({"edge": late}, "does not reach 1 before"),
        ({"edge": edge[:-1]}, "have 20 edges, not 19"),
        ({"edge": edge + 100}, "edges 0..9"),
        ({"root": np.full(5, 7)}, "roots are 0..4"),
        ({"root": np.asarray([0, 1, 2, 3, 3])}, "rank 3 is the root of 2 trees, not 1"),
        ({"weight": np.asarray([1, 1, 1, 1, 2])}, "rank 4 is the root of 2 trees, not 1"),
        ({"weight": np.asarray([1, 1, 1, 1, 0])}, "weight of at least 1"),
        ({"weight": np.ones(4, int)}, "a root, a weight and edges each"),
        ({"tree_ptr": np.asarray([0, 3, 8, 12, 16, 20])}, "every tree needs 4 edges"),
        ({"k": 2, "shard": (2,) * 5}, "rank 0 is the root of 1 trees, not 2"),
        ({"inverse": flow.inverse * 2}, "not 1/250000000"),
        ({"inverse": flow.inverse / 2}, "carries 2 trees"),
        ({"edges": dataclasses.replace(flow.edges, dst=flow.edges.src)}, "joins a rank to itself"),
    ):
        with pytest.raises(ScheduleError, match=text):
            change(flow, **wrong).check_load()
    with pytest.raises(ScheduleError, match="integers"):
        change(flow, weight=np.full(5, 0.5))


@given(
    st.sampled_from([both_ways(2), both_ways(5, 2), both_ways(6), star(4)]),
    st.integers(1, 7),
    st.sampled_from(["stream", "steps"]),
    st.integers(1, 3),
)
def test_schedules_carry_an_all_gather(flow, pieces, order, more):
    schedule = flow.to_schedule(pieces, order=order)
    verify(schedule)
    assert schedule.collective == Collective("all_gather", flow.topology.num_ranks, pieces)
    if order == "steps":
        assert schedule.num_steps == pieces + flow.height - 1
    # Several chunks may be sent in one segment.
    many = Collective("all_gather", flow.topology.num_ranks, pieces * more)
    bundled = flow.to_schedule(pieces, order=order, collective=many)
    verify(bundled)
    assert bundled.num_messages == schedule.num_messages
    assert bundled.num_sends == schedule.num_sends * more


def test_uneven_pieces_and_other_orders_of_ranks():
    flow = both_ways(5)
    backwards = Collective("all_gather", 5, 7, ((4, 3, 2, 1, 0),))
    schedule = flow.to_schedule(3, collective=backwards)
    verify(schedule)
    assert schedule.num_messages == 3 * 20
    schedule = flow.to_schedule(100, collective=backwards)
    assert schedule.num_messages == 7 * 20


@pytest.mark.parametrize("order", ["stream", "steps"])
def test_time_approaches_the_optimum(order):
    flow = star(6)
    best = float(flow.inverse) * 1e9 / 6
    times = [simulate(flow.to_schedule(p, order=order), 1e9).time / best for p in (1, 4, 16, 64)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 1.05


def test_one_root_is_a_broadcast():
    flow = both_ways(4)
    one = change(
        flow,
        shard=(0, 1, 0, 0),
        root=flow.root[1:2],
        weight=flow.weight[1:2],
        tree_ptr=flow.tree_ptr[:2],
        edge=flow.edge[3:6],
        inverse=Fraction(1, 10**9),
    )
    one.check_load()
    schedule = one.to_schedule(3)
    verify(schedule)
    assert schedule.collective == Collective("broadcast", 4, 3, root=1)
    with pytest.raises(ScheduleError, match="carry"):
        one.to_schedule(1, collective=Collective("broadcast", 4, 1, root=0))


def test_what_trees_do_not_carry_is_refused():
    flow = both_ways(4, 2)
    split = change(
        flow,
        root=np.repeat(flow.root, 2),
        weight=np.ones(8, int),
        tree_ptr=np.arange(9) * 3,
        edge=np.repeat(np.asarray(flow.edge).reshape(4, 3), 2, axis=0).ravel(),
    )
    split.check_load()
    assert (flow.granularity, split.granularity) == (1, 2)
    for collective in (
        Collective("all_gather", 4, 3),
        Collective("all_gather", 4, 2, ((0, 1), (2, 3))),
        Collective("reduce_scatter", 4, 2),
    ):
        with pytest.raises(ScheduleError):
            split.to_schedule(1, collective=collective)
    with pytest.raises(ScheduleError, match="piece"):
        flow.to_schedule(0)
    with pytest.raises(ScheduleError, match="order"):
        flow.to_schedule(1, order="sorted")
    uneven = change(flow, shard=(3, 2, 2, 1))
    with pytest.raises(ScheduleError, match="multiples of k=2"):
        uneven.collective(1)


def test_latencies_do_not_matter_to_the_order():
    slow = Topology(3, [0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2], [1.0] * 6, [1e9] * 6)  # type: ignore[arg-type]
    fast = fully_connected(3, bandwidth=1e9)
    flow = change(both_ways(3), topology=fast)
    other = change(both_ways(3), topology=slow)
    one, two = flow.to_schedule(4), other.to_schedule(4)
    assert np.array_equal(one.step, two.step)
    assert np.array_equal(one.chunk, two.chunk)
