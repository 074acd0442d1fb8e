"""The all_reduce program against closed forms, and against what two phases take."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.all_reduce import all_reduce_bound
from jaxcoll.bounds.all_reduce_proofs import (
    DualVariables,
    is_routable,
    proved_rate,
    reached_rate,
)
from jaxcoll.bounds.throughput import bottleneck, optimum
from jaxcoll.errors import TopologyError
from jaxcoll.topologies import (
    dgx1,
    dgx_a100,
    hypercube,
    mesh,
    nvswitch_hosts,
    ring,
    star,
    switch,
    torus,
)
from jaxcoll.topology import Topology
from tests import strategies

GB = 10**9


@pytest.mark.parametrize(
    "topology",
    [
        ring(5, bandwidth=3e9),
        torus(3, 3),
        hypercube(3),
        dgx1(),
        switch(4),
        nvswitch_hosts((2, 2), inside=8e9, network=1e9),
        nvswitch_hosts((4, 4), inside=300e9, network=25e9),
    ],
    ids=lambda t: t.name,
)
def test_two_phases_reach_it_where_ranks_are_equal(topology):
    found = all_reduce_bound(topology)
    assert found.two_phases_reach_it
    assert found.is_exact
    gather, n = optimum(topology).inverse, topology.num_ranks
    assert found.seconds == found.reached == found.two_phases == 2 * gather / n
    assert set(found.roots) == {Fraction(1, n)}


@pytest.mark.slow
def test_two_phases_reach_it_on_a100_hosts():
    found = all_reduce_bound(dgx_a100(2))
    assert found.seconds == found.two_phases == Fraction(3, 520 * 10**9)


def test_a_star_is_best_summed_in_the_middle():
    found = all_reduce_bound(star(5, bandwidth=1e9))
    assert found.seconds == found.reached == Fraction(1, 10**9)
    assert found.two_phases == Fraction(8, 5 * 10**9)
    assert not found.two_phases_reach_it
    assert found.roots == (1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("topology", "gbps"),
    [
        (mesh(2, 3), 70),
        (mesh(3, 3), 75),
        # All data must cross a rank's link twice, or enter and leave the smaller host.
        (nvswitch_hosts((3, 2), inside=4e9, network=1e9), 2),
    ],
    ids=str,
)
def test_unequal_roots_beat_two_phases(topology, gbps):
    found = all_reduce_bound(topology)
    assert found.is_exact
    assert found.seconds == Fraction(1, gbps * 10**9) < found.two_phases
    assert sum(found.roots) == 1


@settings(max_examples=25)
@given(strategies.topologies(max_ranks=5, switches=True, exact=True))
def test_it_is_between_a_broadcast_and_what_is_reached(topology):
    found = all_reduce_bound(topology)
    one = [1] + [0] * (topology.num_ranks - 1)
    # All data must leave, and reach, every set of ranks.
    least = max(bottleneck(topology, one).inverse, bottleneck(topology.transpose(), one).inverse)
    if topology.is_direct:
        assert least <= found.seconds <= found.two_phases
    if found.reached is not None:
        assert found.seconds <= found.reached
        assert float(found.reached) <= float(found.seconds) * (1 + 1e-6)
    assert found.reached is not None or not topology.is_direct


@settings(max_examples=25)
@given(st.integers(2, 5), st.randoms(use_true_random=False))
def test_speeds_fifteen_orders_apart_are_solved(n, random):
    order = random.sample(range(n), n)
    pairs = [(order[i - 1], order[i]) for i in range(n)]
    pairs += [tuple(random.sample(range(n), 2)) for _ in range(random.randint(0, 6))]
    graph = nx.MultiDiGraph()
    for u, v in pairs:
        speed = Fraction(10) ** random.randint(-3, 12) * random.randint(1, 9)
        graph.add_edge(u, v, alpha=0.0, bandwidth=speed)
    found = all_reduce_bound(Topology.from_networkx(graph))
    assert found.reached is not None
    assert found.seconds <= found.reached <= found.two_phases
    assert float(found.reached) == pytest.approx(float(found.seconds), rel=1e-6)


def some(random: Random, count: int) -> list[Fraction]:
    return [Fraction(random.randint(0, 9), random.randint(1, 7)) for _ in range(count)]


@settings(max_examples=200)
@given(strategies.topologies(max_ranks=4, exact=True), st.randoms(use_true_random=False))
def test_any_dual_variables_prove_a_bound_and_any_shares_are_reached(topology, random):
    """Weak duality, in fractions: whatever a solver said, nothing false comes of it."""
    n, links = topology.num_ranks, topology.num_links
    copies, sums = (
        tuple((some(random, 1)[0], some(random, links)) for _ in range(n)) for _ in "rb"
    )
    arcs = tuple(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    bound = proved_rate(topology, DualVariables(arcs, copies, sums, []))
    share = [Fraction(random.randint(0, 5), 5) for _ in range(links)]
    for_copies = [b * x for b, x in zip(topology.exact_bandwidth, share, strict=True)]
    for_sums = [b - c for b, c in zip(topology.exact_bandwidth, for_copies, strict=True)]
    roots, back = some(random, n), [(v, u) for u, v in arcs]
    if any(roots):
        rate = min(reached_rate(n, arcs, for_copies, roots), reached_rate(n, back, for_sums, roots))
        assert bound is None or rate * sum(roots) <= bound


def test_dual_variables_of_a_pair_of_ranks():
    topology, one = ring(2, bandwidth=1e9), Fraction(1)
    arcs = tuple(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))

    def proved(worth: Fraction, length: Fraction) -> Fraction | None:
        side = ((worth, [length] * len(arcs)),) * 2
        return proved_rate(topology, DualVariables(arcs, side, side, []))

    # Every byte crosses to the other rank once as a part and once as a sum, at a length of 1; both
    # links of 1 GB/s cost as much as both ranks ask for.
    assert proved(one, one) == 2 * GB
    # A rank that counts for less asks no farther, and one that counts for nothing proves nothing.
    assert proved(one / 2, one) == 4 * GB
    assert proved(Fraction(0), one) is None
    assert proved(one, Fraction(0)) is None


@given(strategies.topologies(max_ranks=6, exact=True), st.data())
def test_what_is_reached_is_what_cuts_allow(topology, data):
    n = topology.num_ranks
    weights = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    arcs = tuple(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    rate = reached_rate(n, arcs, topology.exact_bandwidth, [Fraction(w) for w in weights])
    best = bottleneck(topology, weights)
    common = sum(weights) // sum(best.weights)
    assert rate * common == 1 / best.inverse


def test_flows_must_fit_and_add_up():
    topology = switch(2, bandwidth=1e9)
    arcs = ((0, 1), (1, 0))
    up_and_down = [
        [
            Fraction(int(u == a or v == 1 - a))
            for u, v in zip(topology.src, topology.dst, strict=True)
        ]
        for a in range(2)
    ]
    fits = (topology, arcs, [Fraction(1), Fraction(1)], up_and_down)
    assert is_routable(*fits, Fraction(10**9))
    assert not is_routable(*fits, Fraction(10**9 + 1))
    assert not is_routable(topology, arcs, [Fraction(1), Fraction(2)], up_and_down, Fraction(1))


def test_one_rank_is_refused():
    with pytest.raises(TopologyError, match="nothing to reduce"):
        all_reduce_bound(ring(1))
