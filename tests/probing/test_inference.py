"""Networks found by asking models of them: links, switches and groups are the true ones."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.paths import forwarded_routes
from jaxcoll.probing.findings import with_devices
from jaxcoll.probing.inference import Port, infer, near_pairs, rounds, segments
from jaxcoll.topology import Topology
from tests.probing.model import Model

RATE = 10_000_000
SLOWLY = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def hosts(
    sizes: list[int], between: Fraction, order: list[int] | None = None, rate: int = RATE
) -> Topology:
    """Hosts of ranks around a switch each; the switches around one more, or joined if two."""
    n, count = sum(sizes), len(sizes)
    order = list(range(n)) if order is None else order
    host = np.repeat(np.arange(count), sizes).tolist()
    cables = [(order[i], n + host[i]) for i in range(n)]
    cables += [(n, n + 1)] if count == 2 else [(n + h, n + count) for h in range(count)]
    low, high = zip(*cables, strict=True)
    rates = [rate * (between if a >= n else 1) for a in low]
    ends = low + high, high + low, [0.0] * 2 * len(cables)
    return Topology(n, *ends, rates * 2, num_vertices=n + count + (count > 2))  # type: ignore[arg-type]


def cables_of(network: Topology) -> dict[tuple[int, int], float]:
    return {
        (int(a), int(b)): float(rate)
        for a, b, rate in zip(network.src, network.dst, network.bandwidth, strict=True)
    }


GRAPHS = st.one_of(
    st.sampled_from([(4,), (8,), (2, 3), (2, 4), (3, 3), (2, 2, 2), (2, 2, 3)]).map(
        lambda sides: topologies.torus(*sides, alpha=0, bandwidth=RATE)
    ),
    st.integers(3, 9).map(lambda n: topologies.mesh(n, alpha=0, bandwidth=RATE)),
    st.integers(3, 7).map(lambda n: topologies.fully_connected(n, alpha=0, bandwidth=RATE)),
    st.integers(3, 8).map(
        lambda n: topologies.ring(n, bidirectional=False, alpha=0, bandwidth=RATE)
    ),
    st.tuples(st.integers(3, 6), st.integers(0, 99)).map(
        lambda given: Topology.from_networkx(
            nx.connected_watts_strogatz_graph(2 * given[0], 3, 0.3, seed=given[1]),
            alpha=0,
            bandwidth=RATE,
        )
    ),
)


@SLOWLY
@given(
    GRAPHS, st.floats(0, 0.08), st.integers(0, 2**31), st.booleans(),
    st.sampled_from([None, Fraction(1, 5), Fraction(1, 2), Fraction(2, 3)]), st.data(),
)  # fmt: skip
def test_cables_are_those_of_the_network(truth, noise, seed, sees, slower, data):
    """Each cable, its rate, and the one that is slow, by name."""
    slow = None
    if slower is not None and truth.num_links > 8:
        k = data.draw(st.integers(0, truth.num_links - 1))
        slow = int(truth.src[k]), int(truth.dst[k])
        truth = truth.scaled({slow: slower})
    found = infer(Model(truth, noise, sees, seed), seed)
    expected, cables = cables_of(truth), cables_of(found.network)
    assert found.network.num_vertices == truth.num_ranks
    assert cables.keys() == expected.keys()
    for pair, rate in cables.items():
        assert rate == pytest.approx(expected[pair], rel=0.1)
    assert len({rate for pair, rate in cables.items() if pair != slow}) == 1
    said = [text for text in found.findings if "of" in text and "no cable" not in text]
    assert [text.partition(":")[0] for text in said] == (
        [f"rank {slow[0]} to rank {slow[1]}"] if slow else []
    )
    assert found.errors.max() < 1.2


def test_a_cable_that_is_cut_is_named():
    torus = topologies.torus(2, 4, alpha=0, bandwidth=RATE)
    found = infer(Model(torus.without([(2, 3), (3, 2)])))
    assert found.findings == (
        "rank 2 to rank 3: no cable, where torus 2x4 has one",
        "rank 3 to rank 2: no cable, where torus 2x4 has one",
    )
    assert found.network == torus.without([(2, 3), (3, 2)])
    assert infer(Model(torus)).network == torus


SIZES = st.sampled_from([[4, 4], [2, 2], [2, 2, 2, 2], [3, 3], [3, 3, 3], [4, 4, 4], [2, 2, 2]])


@SLOWLY
@given(
    SIZES, st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(1)]), st.floats(0, 0.06),
    st.integers(0, 2**31), st.booleans(), st.data(),
)  # fmt: skip
def test_hosts_are_those_of_the_network(sizes, between, noise, seed, sees, data):
    """The groups, in whatever order ranks are numbered, and the uplinks to within a tenth."""
    order = data.draw(st.permutations(range(sum(sizes))))
    truth = hosts(sizes, between, order)
    found = infer(Model(truth, noise, sees, seed), seed)
    network, n = found.network, truth.num_ranks
    assert found.findings == ()
    of_rank = {int(a): int(b) for a, b in zip(network.src, network.dst, strict=True) if a < n}
    groups = {frozenset(r for r in of_rank if of_rank[r] == s) for s in of_rank.values()}
    true = np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert groups == {
        frozenset(order[i] for i in range(n) if true[i] == h) for h in range(len(sizes))
    }
    for a, b, rate in zip(network.src, network.dst, network.bandwidth, strict=True):
        expected = RATE if min(a, b) < n else float(RATE * between)
        assert rate == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize("n", [3, 4, 8])
def test_one_switch_has_a_port_of_each_rank(n, sees):
    truth = topologies.switch(n, alpha=0, bandwidth=RATE).scaled({(1, n): Fraction(2, 3)})
    found = infer(Model(truth, 0.05, sees))
    assert found.network.num_vertices == n + 1
    assert found.network.num_links == 2 * n
    (text,) = found.findings
    assert text.startswith(f"rank 1 to the switch of ranks 0-{n - 1}: ")


def test_switches_that_do_not_block_are_one():
    found = infer(Model(hosts([4, 4], Fraction(4)), 0.05))
    assert found.network.num_vertices == 9
    found = infer(Model(hosts([4, 4], Fraction(2)), 0.05))
    assert found.network.num_vertices == 10
    assert sorted(set(found.network.bandwidth / RATE)) == pytest.approx([1, 2], rel=0.1)


def test_rails_are_switches_and_cables():
    truth = topologies.multi_rail(2, 4, alpha=(0, 0), bandwidth=(RATE, RATE))
    found = infer(Model(truth, 0.05))
    assert found.network.num_vertices == 10
    assert found.network.num_links == 24
    assert found.errors.max() < 1.15


@given(st.integers(2, 9), st.integers(0, 99))
def test_rounds_send_and_receive_once_and_are_few(n, seed):
    generator = np.random.default_rng(seed)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b and generator.random() < 0.6]
    found = rounds(pairs, n)
    assert sorted(pair for together in found for pair in together) == sorted(pairs)
    for together in found:
        assert len({a for a, _ in together}) == len({b for _, b in together}) == len(together)
    full = [(a, b) for a in range(n) for b in range(n) if a != b]
    assert len(rounds(full, n)) == n - 1


@given(GRAPHS)
def test_near_pairs_are_those_with_a_cable(truth):
    assert set(near_pairs(Model(truth).hops())) == set(cables_of(truth))


def test_segments_hang_together_by_ports():
    def ports(*parts):
        return [Port(frozenset(part), 1.0, float) for part in parts]

    out = {0: ports([(0, 1), (0, 2)]), 1: ports([(1, 0)]), 2: ports([(2, 0)])}
    into = {0: ports([(1, 0)], [(2, 0)]), 1: ports([(0, 1)]), 2: ports([(0, 2)])}
    assert segments(out, into) == [[(0, 1), (0, 2)], [(1, 0)], [(2, 0)]]


def test_devices_of_processes_send_through_their_cables():
    ring = topologies.ring(3, alpha=1e-5, bandwidth=10**9)
    network = with_devices(ring, [[0, 3], [1, 4], [2, 5]], 2e9)
    assert (network.num_ranks, network.num_vertices, network.num_links) == (6, 9, 18)
    edges = forwarded_routes(network, np.array([0, 0]), np.array([3, 4]))
    assert edges.hops.tolist() == [2, 3]
    assert network.bandwidth[edges.paths_of(np.array([1]))[1]].tolist() == [2e9, 1e9, 2e9]
