"""The all-to-all rate: against LP (A.1) as written, the values of Table A.1, and closed forms."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from scipy.optimize import linprog

from jaxcoll import topologies as families
from jaxcoll.errors import TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.synth.routing import concurrent_flow as module
from jaxcoll.synth.routing.concurrent_flow import concurrent_flow, digraph_flow
from jaxcoll.topology import Topology
from tests import strategies

Arcs = tuple[int, np.ndarray, np.ndarray]


def circulant(size: int, offsets: list[int]) -> Arcs:
    pairs = [(u, (u + sign * a) % size) for u in range(size) for a in offsets for sign in (1, -1)]
    return arcs_of(size, pairs)


def kautz(degree: int, size: int) -> Arcs:
    pairs = [(x, (-degree * x - a) % size) for x in range(size) for a in range(1, degree + 1)]
    return arcs_of(size, pairs)


def bipartite(degree: int) -> Arcs:
    ranks = range(2 * degree)
    return arcs_of(
        2 * degree, [(u, v) for u in ranks for v in ranks if (u < degree) != (v < degree)]
    )


def uniring(size: int) -> Arcs:
    return arcs_of(size, [(u, (u + 1) % size) for u in range(size)])


def product(first: Arcs, second: Arcs) -> Arcs:
    size = second[0]
    along_first = [
        (a * size + k, b * size + k) for a, b in zip(*first[1:], strict=True) for k in range(size)
    ]
    along_second = [
        (k * size + a, k * size + b)
        for a, b in zip(*second[1:], strict=True)
        for k in range(first[0])
    ]
    return arcs_of(first[0] * size, along_first + along_second)


def line(graph: Arcs, times: int = 1) -> Arcs:
    for _ in range(times):
        _, tails, heads = graph
        pairs = [
            (i, j) for i in range(len(tails)) for j in np.flatnonzero(tails == heads[i]).tolist()
        ]
        graph = arcs_of(len(tails), pairs)
    return graph


def arcs_of(size: int, pairs: list[tuple[int, int]]) -> Arcs:
    columns = np.asarray(pairs, np.int64)
    return size, columns[:, 0], columns[:, 1]


def program(size: int, tails: np.ndarray, heads: np.ndarray, capacity: np.ndarray) -> float:
    """LP (A.1) as the paper writes it, with a variable per source and arc."""
    count = len(tails)
    column = np.arange(size * count)
    source, arc = column // count, column % count
    full = sp.coo_matrix((np.ones(size * count), (arc, column)), (count, size * count + 1))
    rows = np.concatenate([source * size + tails[arc], source * size + heads[arc]])
    signs = np.repeat([1.0, -1.0], size * count)
    net = sp.coo_matrix((signs, (rows, np.tile(column, 2))), (size**2, size * count)).tolil()
    net = sp.hstack([net, np.ones((size**2, 1))]).tocsr()[~np.eye(size, dtype=bool).ravel()]
    found = linprog(
        np.append(np.zeros(size * count), -1.0),
        A_ub=sp.vstack([full, net]),
        b_ub=np.concatenate([capacity, np.zeros(net.shape[0])]),
    )
    return -found.fun


@given(strategies.topologies(max_ranks=7, homogeneous=False))
def test_is_the_optimum_of_the_program_on_any_network(topology: Topology):
    if topology.num_ranks < 2:
        return
    least = min(topology.exact_bandwidth)
    capacity = np.asarray([float(b / least) for b in topology.exact_bandwidth])
    expected = program(
        topology.num_ranks, topology.src.astype(int), topology.dst.astype(int), capacity
    )
    rate = concurrent_flow(topology)
    assert rate.lower <= rate.upper
    assert float(rate.lower) == pytest.approx(expected, rel=1e-6)
    assert float(rate.upper) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("graph", [kautz(2, 13), kautz(3, 20), kautz(4, 18)])
def test_soft_distances_meet_the_program_within_the_tolerance(graph: Arcs, monkeypatch):
    monkeypatch.setattr(module, "MOST_CLASSES", 0)
    tails, heads = graph[1:]
    proper = tails != heads
    expected = program(graph[0], tails[proper], heads[proper], np.ones(proper.sum()))
    rate = digraph_flow(*graph, tolerance=0.002)
    assert rate.gap <= 0.002
    assert float(rate.lower) <= expected * (1 + 1e-9)
    assert float(rate.upper) >= expected * (1 - 1e-9)


def fours() -> Arcs:
    return product(product(uniring(4), uniring(4)), uniring(4))


@pytest.mark.parametrize(
    ("graph", "rate"),
    [
        (line(bipartite(4)), Fraction(2, 35)),
        (line(bipartite(4), 3), Fraction(1, 532)),
        (product(fours(), uniring(8)), Fraction(1, 1792)),
        (
            product(product(uniring(4), uniring(8)), product(uniring(4), uniring(8))),
            Fraction(1, 3584),
        ),
    ],
    ids=["L(K4,4)", "L^3(K4,4)", "UniRing(4)^3 x UniRing(8)", "(UniRing(4) x UniRing(8))^2"],
)
def test_is_the_exact_value_of_table_a_1(graph: Arcs, rate: Fraction):
    found = digraph_flow(*graph)
    assert found.is_exact
    assert found.lower == rate


def test_torus_of_1024_ranks_is_as_fast_as_its_distances_allow():
    topology = families.torus(32, 32)
    rate = concurrent_flow(topology)
    assert rate.lower == rate.upper == Fraction(1, 4096)
    assert Fraction(topology.num_links, int(hop_distances(topology).sum())) == rate.upper


def test_generalized_kautz_of_table_a_1():
    rate = digraph_flow(*kautz(4, 64))
    assert round(float(rate.lower), 4) == 0.0217
    assert rate.gap < 1e-6


@pytest.mark.slow
def test_bound_of_table_3_4_is_above_every_network_of_1024_ranks():
    assert digraph_flow(*circulant(1024, [22, 23])).lower < Fraction(4, 4667)


def test_flow_proves_the_lower_bound():
    size, tails, heads = kautz(3, 14)
    rate = digraph_flow(size, tails, heads)
    load = rate.flow.sum(axis=0)
    for s in range(size):
        into = np.bincount(heads, weights=rate.flow[s], minlength=size)
        out = np.bincount(tails, weights=rate.flow[s], minlength=size)
        assert np.delete(into - out, s).min() >= rate.unit
    assert Fraction(rate.unit, int(load.max())) == rate.lower
    assert not rate.flow[:, tails == heads].any()


def test_pair_time_of_the_bound_is_that_of_table_3_4():
    rate = digraph_flow(*circulant(16, [3, 4]))
    # 83.886 us (d/n) / f, as for the bound's 382.3 us at f = 4/4667.
    assert 83.886e-6 * 4 / 1024 / float(Fraction(4, 4667)) == pytest.approx(382.3e-6, abs=5e-8)
    assert rate.pair_time(1.0, 4, 16) == pytest.approx(0.25 / float(rate.lower))


@pytest.mark.slow
@pytest.mark.parametrize("printed_for", ["Pi(4,1024)", "L^3(C(16,{3,4}))"])
def test_bounds_meet_within_half_a_percent_at_1024_ranks(printed_for: str):
    """Printed for L^3(C(16,{3,4})): 8.12e-4. Lengths prove that no flow is above 7.86e-4."""
    kautz_graph = printed_for.startswith("Pi")
    rate = digraph_flow(*(kautz(4, 1024) if kautz_graph else line(circulant(16, [3, 4]), 3)))
    assert rate.gap <= 0.005
    checked = 8.01e-4 if kautz_graph else 7.850e-4
    assert float(rate.lower) <= checked * 1.001
    assert float(rate.upper) >= checked * 0.999
    assert rate.upper < Fraction(812, 10**6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: concurrent_flow(families.switch(4)), "has switches"),
        (lambda: concurrent_flow(families.ring(4), tolerance=0), "tolerance"),
        (lambda: concurrent_flow(families.ring(1)), "size"),
        (lambda: digraph_flow(3, np.array([0, 1]), np.array([1, 0])), "reach"),
        (lambda: digraph_flow(2, np.array([0, 1]), np.array([1])), "tails and heads"),
        (lambda: digraph_flow(2, np.array([0, 1]), np.array([1, 2])), "vertices"),
        (lambda: digraph_flow(2, np.array([0, 1]), np.array([1, 0]), [Fraction(1)]), "capacity"),
    ],
)
def test_bad_input_is_refused(call, message: str):
    with pytest.raises(TopologyError, match=message):
        call()
