"""Throughput optima against brute force over all cuts, closed forms and the literature."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds import throughput
from jaxcoll.bounds.throughput import balanced, bottleneck, check_balanced, fixed_k, optimum
from jaxcoll.errors import TopologyError
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, star, switch, torus
from jaxcoll.topology import Topology
from tests import strategies
from tests.synth.forestcoll.networks import balanced_or_none

NETWORKS = strategies.topologies(max_ranks=8, switches=True, exact=True).filter(
    lambda t: t.num_vertices <= 10
)
WEIGHTS = st.sampled_from([0, 1, 2, 3, Fraction(1, 2), 0.1, 10**20])


def all_cuts(topology: Topology) -> list[tuple[frozenset[int], list[int]]]:
    """Every set of vertices that misses a rank, with the links that leave it."""
    found = []
    for mask in range(2**topology.num_vertices):
        inside = [mask >> v & 1 for v in range(topology.num_vertices)]
        if all(inside[: topology.num_ranks]):
            continue
        ends = enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        leaving = [e for e, (u, v) in ends if inside[u] and not inside[v]]
        found.append((frozenset(v for v, x in enumerate(inside) if x), leaving))
    return found


def brute_force(topology: Topology, weights: list[Fraction]) -> Fraction:
    """max w(S) / B(S), over every cut."""
    n, bandwidth = topology.num_ranks, topology.exact_bandwidth
    unit = math.lcm(*(b.denominator for b in bandwidth))
    whole = [int(b * unit) for b in bandwidth]
    assert sum(whole) < 2**63
    mask = np.arange(2**topology.num_vertices)
    leaving = np.zeros(len(mask), np.int64)
    for u, v, b in zip(topology.src, topology.dst, whole, strict=True):
        leaving += b * ((mask >> u & 1) & ~(mask >> v & 1))
    # Of the cuts with the same ranks, the one that lets out least.
    least = leaving.reshape(-1, 2**n).min(axis=0)
    return max(
        sum((w for r, w in enumerate(weights) if ranks >> r & 1), Fraction(0))
        * unit
        / int(least[ranks])
        for ranks in range(1, 2**n - 1)
    )


def weights_for(topology: Topology, data) -> list | None:
    n = topology.num_ranks
    if data.draw(st.booleans()):
        return None
    return data.draw(st.lists(WEIGHTS, min_size=n, max_size=n).filter(any))


def coprime(weights, n: int) -> list[Fraction]:
    if weights is None:
        return [Fraction(1)] * n
    exact = [Fraction(str(w)) for w in weights]
    unit = math.lcm(*(w.denominator for w in exact))
    return [w * unit / math.gcd(*(int(v * unit) for v in exact)) for w in exact]


def check_optimum(topology: Topology, weights) -> None:
    found = bottleneck(topology, weights)
    expected = coprime(weights, topology.num_ranks)
    assert [Fraction(w) for w in found.weights] == expected
    assert found.inverse == brute_force(topology, expected)
    found.check(topology)
    assert not set(range(topology.num_ranks)) <= found.cut
    scaling = found.scaling
    assert scaling.inverse == found.inverse
    assert found.y == 1 / found.U
    whole = [found.U * b for b in topology.exact_bandwidth]
    assert [Fraction(c) for c in scaling.capacity] == whole
    assert list(scaling.trees) == [found.k * w for w in found.weights]
    # No fewer trees divide every link into whole ones.
    for k in range(1, min(found.k, 40)):
        fewer = k * found.inverse
        assert any((fewer * b).denominator > 1 for b in topology.exact_bandwidth)


@given(NETWORKS, st.data())
def test_the_optimum_is_the_worst_of_all_cuts(topology, data):
    check_optimum(topology, weights_for(topology, data))


@pytest.mark.slow
@settings(max_examples=2000)
@given(strategies.topologies(max_ranks=11, switches=True, exact=True), st.data())
def test_the_optimum_is_the_worst_of_all_cuts_of_larger_networks(topology, data):
    check_optimum(topology, weights_for(topology, data))


@given(NETWORKS, st.integers(1, 5))
def test_a_fixed_number_of_trees_is_as_fast_as_every_cut_allows(topology, k):
    topology = balanced_or_none(topology)
    if topology is None:
        return
    found = fixed_k(topology, k)
    bandwidth = topology.exact_bandwidth

    def fits(U: Fraction) -> bool:
        return all(
            sum(math.floor(U * bandwidth[e]) for e in leaving)
            >= k * sum(v < topology.num_ranks for v in cut)
            for cut, leaving in all_cuts(topology)
        )

    assert fits(found.U)
    best = optimum(topology)
    assert best.inverse <= found.inverse
    floors = tuple(math.floor(found.U * b) for b in bandwidth)
    if found.capacity != floors:  # trimmed, so that switches are balanced
        assert not topology.is_direct
        assert all(c <= f for c, f in zip(found.capacity, floors, strict=True))
        return
    # The next lower scale at which any link carries another number of trees.
    below = max(Fraction(math.ceil(found.U * b) - 1) / b for b in bandwidth)
    assert not fits(below)
    assert found.inverse <= best.inverse + 1 / (k * min(bandwidth))  # Theorem 35
    if k % best.k == 0:
        assert found.inverse == best.inverse


@given(NETWORKS)
def test_trimmed_networks_are_balanced_parts_of_the_network(topology):
    trimmed = balanced_or_none(topology)
    if trimmed is None or topology.is_direct:
        return
    check_balanced(trimmed)
    total: dict[tuple[int, int], Fraction] = {}
    for t, sign in ((topology, 1), (trimmed, -1)):
        for u, v, b in zip(t.src.tolist(), t.dst.tolist(), t.exact_bandwidth, strict=True):
            total[u, v] = total.get((u, v), Fraction(0)) + sign * b
    assert min(total.values()) >= 0
    assert balanced(trimmed) == trimmed
    assert optimum(trimmed).inverse >= bottleneck(topology).inverse


@pytest.mark.parametrize(
    ("topology", "inverse", "k"),
    [
        (torus(8, 8, bandwidth=1), Fraction(63, 4), 4),
        (torus(4, 4, 4, bandwidth=1), Fraction(21, 2), 2),
        (hypercube(6, bandwidth=1), Fraction(21, 2), 2),
        (fully_connected(5, bandwidth=1), Fraction(1), 1),
        (ring(7, bandwidth=1), Fraction(3), 1),
        (ring(7, bidirectional=False, bandwidth=1), Fraction(6), 1),
        (switch(9, bandwidth=1), Fraction(8), 1),
        (star(5, bandwidth=1), Fraction(4), 1),
        (mesh(3, 3, bandwidth=1), Fraction(4), 1),
        (ring(2, bandwidth=Fraction(1, 3)), Fraction(3), 1),  # type: ignore[arg-type]
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_known_optima(topology, inverse, k):
    found = optimum(topology)
    assert (found.inverse, found.k) == (inverse, k)


def test_a_broadcast_is_bounded_by_its_least_cut():
    topology = star(5, bandwidth=7)
    found = optimum(topology, [0, 1, 0, 0, 0])
    assert (found.inverse, found.scaling.trees) == (Fraction(1, 7), (0, 1, 0, 0, 0))


@pytest.mark.parametrize("unit", [10**-30, 1e-9, 1, 10**40, Fraction(10**50, 7)])
def test_any_magnitude_is_exact(unit):
    unit = Fraction(unit)
    bandwidth = [299993 * unit, 299993 * unit, 24989 * unit, 24989 * unit]
    topology = Topology(2, [0, 2, 1, 2], [2, 0, 2, 1], np.zeros(4), bandwidth, num_vertices=3)  # type: ignore[arg-type]
    assert optimum(topology).inverse == 1 / (24989 * unit)


def test_unbalanced_switches_are_refused_by_name():
    src, dst = np.asarray([0, 1, 2, 2]), np.asarray([2, 2, 0, 1])
    bandwidth = np.asarray([5.0, 5.0, 5.0, 4.0])
    names = ("a", "b", "sw")
    topology = Topology(2, src, dst, np.zeros(4), bandwidth, 3, vertex_names=names)
    with pytest.raises(TopologyError, match=r"rank 1 \(b\) must have .* but 1 B/s more leaves it"):
        optimum(topology)
    found = optimum(balanced(topology))
    assert found.inverse == Fraction(1, 4)
    assert bottleneck(topology).inverse == Fraction(1, 4)


def test_bad_requests_are_refused():
    with pytest.raises(TopologyError, match="nothing to gather"):
        optimum(ring(1))
    for weights in ([1, 2], [0, 0, 0], [1, 1, -1], [1, 1, float("nan")], [1, 1, "x"], 5):
        with pytest.raises(TopologyError, match="weights"):
            optimum(ring(3), weights)  # type: ignore[arg-type]
    for k in (0, -1, 1.5):
        with pytest.raises(TopologyError, match="k"):
            fixed_k(ring(3), k)  # type: ignore[arg-type]


def test_a_wrong_certificate_is_refused():
    found = optimum(ring(6))
    with pytest.raises(TopologyError, match="certificate"):
        found.check(ring(6, bandwidth=1e9))
    with pytest.raises(TopologyError, match="is not"):
        throughput.dataclasses.replace(found, inverse=found.inverse * 2).check(ring(6))
    with pytest.raises(TopologyError, match="certificate"):
        throughput.dataclasses.replace(found, cut=frozenset(range(6))).check(ring(6))


def test_the_certificate_reads_well():
    text = str(optimum(torus(4, 4)))
    assert "15 ranks" in text
    assert "200 GB/s" in text
