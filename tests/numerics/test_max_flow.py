"""Maximum flow against networkx, and at magnitudes that no machine integer holds."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.numerics.max_flow import FlowNetwork
from tests.strategies import SEEDS

UNITS = st.sampled_from([1, 3, 10**9, 2**40, 2**61, 10**30])


def arcs(seed: int, unit: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Vertices and arcs (src, dst, capacity) of a random network, parallel ones included."""
    rng = random.Random(seed)
    vertices = rng.randint(2, 9)
    listed = []
    for _ in range(rng.randint(0, 30)):
        u, v = rng.sample(range(vertices), 2)
        listed.append((u, v, unit * rng.randint(0, 7) + rng.randint(0, 1)))
    return vertices, listed


def networkx_flow(vertices, listed, source, sink) -> int:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(vertices))
    for u, v, c in listed:
        old = graph.edges[u, v]["capacity"] if graph.has_edge(u, v) else 0
        graph.add_edge(u, v, capacity=old + c)
    return nx.maximum_flow_value(graph, source, sink)  # type: ignore[no-matching-overload]


@given(SEEDS, UNITS)
def test_flows_are_maximum(seed, unit):
    vertices, listed = arcs(seed, unit)
    src, dst, capacity = map(list, zip(*listed, strict=True)) if listed else ([], [], [])
    network = FlowNetwork(vertices, np.asarray(src, int), np.asarray(dst, int))
    expected = networkx_flow(vertices, listed, 0, vertices - 1)
    assert network.flow(capacity, 0, vertices - 1) == expected
    assert network.flow(capacity, 0, vertices - 1, expected // 2) == expected // 2
    carried = network.carried(capacity, 0, vertices - 1)
    assert all(0 <= f <= c for f, c in zip(carried, capacity, strict=True))
    net = [0] * vertices
    for u, v, f in zip(src, dst, carried, strict=True):
        net[u] -= f
        net[v] += f
    assert net == [-expected, *[0] * (vertices - 2), expected]


@given(SEEDS, UNITS)
def test_a_shortfall_comes_with_a_least_cut(seed, unit):
    vertices, listed = arcs(seed, unit)
    src, dst, capacity = map(list, zip(*listed, strict=True)) if listed else ([], [], [])
    network = FlowNetwork(vertices, np.asarray(src, int), np.asarray(dst, int))
    targets = range(1, vertices)
    flows = [networkx_flow(vertices, listed, 0, t) for t in targets]
    assert network.first_short(capacity, 0, targets, min(flows)) is None
    short = network.first_short(capacity, 0, targets, min(flows) + 1)
    assert short is not None
    assert (short.target, short.flow) == (1 + flows.index(min(flows)), min(flows))
    side = short.source_side
    assert side[0]
    assert not side[short.target]
    assert short.flow == sum(c for u, v, c in listed if side[u] and not side[v])


@pytest.mark.parametrize("capacity", [2**31, 2**62 - 1, 2**62, 2**63, 10**40])
def test_nothing_wraps(capacity):
    network = FlowNetwork(3, np.asarray([0, 0, 1]), np.asarray([1, 1, 2]))
    assert network.flow([capacity, capacity, 3 * capacity], 0, 2) == 2 * capacity
    column = np.asarray([capacity] * 3, object)
    assert network.flow(column, 0, 2, 3 * capacity) == capacity


def test_columns_of_machine_integers_whose_sum_wraps():
    many = 8
    network = FlowNetwork(2, np.zeros(many, int), np.ones(many, int))
    assert network.flow(np.full(many, 2**61), 0, 1) == many * 2**61


def test_a_network_serves_several_threads_at_once():
    """Beyond 62 bits the kernel runs as Python, and threads take turns in the middle of a flow."""
    src = np.arange(12).repeat(2)
    dst = (src + np.tile([1, 5], 12)) % 12
    network, capacity = FlowNetwork(12, src, dst), [2**70 + i for i in range(24)]
    ends = [(u, v) for u in range(12) for v in range(12) if u != v]

    def flow(pair: tuple[int, int]) -> int:
        return network.flow(capacity, *pair)

    alone, interval = list(map(flow, ends)), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(flow, ends))
    finally:
        sys.setswitchinterval(interval)
    assert together == alone
