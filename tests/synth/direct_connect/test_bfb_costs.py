"""Costs of BFB schedules: closed forms, printed numbers, and the theorems on bandwidth."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from jaxcoll.bounds.moore import optimality
from jaxcoll.collective import Collective
from jaxcoll.paths import hop_distances
from jaxcoll.synth import Bfb
from jaxcoll.synth.direct_connect import bfb_bottlenecks, bfb_cost
from jaxcoll.topologies import fully_connected, hypercube, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests.synth.direct_connect.networks import HOMOGENEOUS, circulant, digraph, kautz

# Dissertation, Table 3.6, but for its two largest: steps, and T_B = (N - 1)/N.
TABLE_3_6 = [
    *((hypercube(d), d) for d in (2, 3, 4, 5, 6)),
    (torus(2, 2), 2), (torus(3, 3), 2), (torus(4, 4), 4), (torus(5, 5), 4), (torus(6, 6), 6),
]  # fmt: skip


@pytest.mark.parametrize(("network", "steps"), TABLE_3_6, ids=lambda x: str(getattr(x, "name", x)))
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_hypercubes_and_tori_are_bandwidth_optimal(network, steps, kind):
    chunks = Bfb.chunks(network)
    schedule = Bfb().synthesize(network, Collective(kind, network.num_ranks, chunks))
    verify(schedule)
    found = optimality(schedule)
    assert found.bandwidth
    assert found.least_steps
    assert found.cost.steps == (2 if kind == "all_reduce" else 1) * steps


@pytest.mark.slow
@pytest.mark.parametrize("network", [hypercube(10), torus(50, 50)], ids=lambda x: x.name)
def test_the_two_largest_of_table_3_6(network):
    schedule = Bfb().synthesize(
        network, Collective("all_gather", network.num_ranks, Bfb.chunks(network))
    )
    verify(schedule)
    assert optimality(schedule).bandwidth
    assert schedule.num_steps == {1024: 10, 2500: 50}[network.num_ranks]


@pytest.mark.parametrize("sides", [(3, 4), (5, 2, 3), (4, 6), (7,), (2, 2, 3), (8, 3)])
def test_tori_of_any_sides_take_half_of_each(sides):
    found = bfb_cost(torus(*sides))
    n = int(np.prod(sides))
    assert found.steps == sum(side // 2 for side in sides)
    assert found.inverse_bandwidth == Fraction(n - 1, n)


@pytest.mark.parametrize(
    ("network", "steps", "share"),
    [
        (kautz(4, 64), 3, "21/16"),  # Table A.1
        (circulant(7, 2, 3), 2, "6/7"),  # Table 3.5
        (circulant(11, 2, 3), 2, "10/11"),
        (circulant(12, 2, 3), 2, "11/12"),
        (fully_connected(5), 1, "4/5"),
        (circulant(15, 1, 4, 5), 2, "1"),  # against Conjecture 1, which says 14/15
    ],
)
def test_costs_that_are_printed_or_refute(network, steps, share):
    degree = int(np.bincount(network.src).max())
    total = sum(found.shards for found in bfb_bottlenecks(network))
    assert len(bfb_bottlenecks(network)) == steps
    assert total * degree / network.num_ranks == Fraction(share)


@pytest.mark.slow
def test_the_largest_kautz_digraph_of_table_a_1():
    shards = [found.shards for found in bfb_bottlenecks(kautz(4, 1024))]
    assert (len(shards), sum(shards) * 4 / 1024) == (5, Fraction(341, 256))


def test_parallel_links_share_and_self_loops_count():
    n, d = 4, 2
    rings = digraph(n, [(i, (i + 1) % n) for i in range(n) for _ in range(d)])
    assert bfb_cost(rings).inverse_bandwidth == Fraction(3, 4)
    assert bfb_cost(rings).steps == 3
    # L(UniRing(2, 4)): T_B 7/8 where Theorem 7 allows 1.
    arcs = [(2 * i + a, (2 * i + 2) % 8 + b) for i in range(n) for a in range(2) for b in range(2)]
    assert bfb_cost(digraph(8, arcs)).inverse_bandwidth == Fraction(7, 8)

    tails, heads = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2, 0])
    loops: Any = SimpleNamespace(size=3, degree=2, generators=(), tails=tails, heads=heads)
    assert bfb_cost(loops).inverse_bandwidth == Fraction(4, 3)


UNDIRECTED = [
    *(nx.random_regular_graph(d, n, seed=s) for d, n in ((3, 8), (4, 9)) for s in range(6)),
    nx.petersen_graph(), nx.heawood_graph(), nx.cubical_graph(), nx.octahedral_graph(),
    nx.dodecahedral_graph(), nx.circulant_graph(9, [1, 2]), nx.circular_ladder_graph(5),
    nx.complete_bipartite_graph(4, 4), nx.hypercube_graph(3), nx.paley_graph(9),
    nx.line_graph(nx.petersen_graph()), nx.circulant_graph(15, [1, 4, 5]),
]  # fmt: skip


def undirected(graph: nx.Graph) -> Topology:
    plain = nx.Graph(nx.convert_node_labels_to_integers(graph))
    return Topology.from_networkx(plain, alpha=1e-6, bandwidth=1e9)


def constants(network: Topology, hops: np.ndarray, x: int) -> tuple[set[int], set[int], set[int]]:
    """The values that N_x, a_x and b_x of Theorem 18 take."""
    n = network.num_ranks
    links = list(zip(network.src.tolist(), network.dst.tolist(), strict=True))
    size = {int((hops[u] == x).sum()) for u in range(n)}
    a = {int(((hops[u] == x) & (hops[w] == x - 1)).sum()) for u, w in links}
    neighbour = hops == 1
    b = {
        int((neighbour[u] & (hops[v] == x - 1)).sum())
        for u in range(n)
        for v in np.flatnonzero(hops[u] == x)
    }
    return size, a, b


def test_theorem_18_is_sufficient_and_17_is_exact():
    proved = 0
    for graph in UNDIRECTED:
        network = undirected(graph)
        hops = hop_distances(network)
        n, d = network.num_ranks, int(np.bincount(network.src).max())
        found = bfb_cost(network)
        optimal = found.inverse_bandwidth == Fraction(n - 1, n)
        diameter = int(hops.max())
        known = [
            sum(len(c) == 1 for c in constants(network, hops, x)) for x in range(1, diameter + 1)
        ]
        if min(known) >= 2:
            proved += 1
            assert optimal, graph
        # Theorem 17: optimal if and only if all ranks have equally many at each distance, and every
        # link carries its share of them.
        counts = {tuple(np.bincount(row, minlength=diameter + 1)) for row in hops}
        chunks = Bfb.chunks(network) * d
        schedule = Bfb().synthesize(network, Collective("all_gather", n, chunks))
        load = np.zeros((diameter, network.num_links), int)
        np.add.at(load, (schedule.step, schedule.edge), 1)
        balanced = all(
            (load[x - 1] * d == chunks * next(iter(counts))[x]).all()
            for x in range(1, diameter + 1)
        )
        assert optimal == (len(counts) == 1 and balanced), graph
    assert 8 <= proved < len(UNDIRECTED)


def test_the_third_constant_of_theorem_18_need_not_exist():
    # The theorem says that two constants imply the third; here N_2 = 5 and a_2 = 3 exist alone.
    network = circulant(12, 1, 2, 5)
    size, a, b = constants(network, hop_distances(network), 2)
    assert (size, a) == ({5}, {3})
    assert len(b) > 1
    assert bfb_cost(network).inverse_bandwidth == Fraction(11, 12)


@settings(max_examples=20)
@given(HOMOGENEOUS)
def test_costs_do_not_depend_on_what_symmetry_is_known(network):
    for symmetric in (network, torus(2, 3), hypercube(3), circulant(9, 1, 2)):
        bare = Topology(
            symmetric.num_ranks, symmetric.src, symmetric.dst, symmetric.alpha, symmetric.bandwidth
        )
        shares = [found.shards for found in bfb_bottlenecks(symmetric)]
        assert shares == [found.shards for found in bfb_bottlenecks(bare)]


def test_hypercubes_carry_binomials():
    shares = [found.shards for found in bfb_bottlenecks(hypercube(7))]
    assert shares == [Fraction(comb(7, t), 7) for t in range(1, 8)]
