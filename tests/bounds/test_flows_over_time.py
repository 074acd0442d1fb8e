"""Cuts over time: against maximum flows in time-expanded networks, bisection and closed forms."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds.all_reduce_times import Latencies, across, entering, least_times, leaving
from jaxcoll.bounds.needs import Listed
from jaxcoll.bounds.times import arrival_over_time
from jaxcoll.topology import Topology


def by_bisection(bandwidth: np.ndarray, late: np.ndarray, nbytes: float) -> float:
    """The least T with sum of bandwidth x max(0, T - late) of at least so many bytes."""
    low, high = 0.0, late.min() + nbytes / bandwidth[late.argmin()]
    for _ in range(200):
        middle = (low + high) / 2
        enough = (bandwidth * np.maximum(0.0, middle - late)).sum() >= nbytes
        low, high = (low, middle) if enough else (middle, high)
    return high


@given(st.data())
def test_least_times_by_bisection(data):
    number = st.floats(0.01, 100.0)
    count = data.draw(st.integers(1, 6))
    bandwidth = np.asarray(data.draw(st.lists(number, min_size=count, max_size=count)))
    late = np.asarray(data.draw(st.lists(st.floats(0.0, 10.0), min_size=count, max_size=count)))
    nbytes = data.draw(number)
    found = least_times(bandwidth, late[None], np.array([nbytes]))[0]
    assert found == pytest.approx(by_bisection(bandwidth, late, nbytes), rel=1e-9)


def test_least_times_of_speeds_far_apart():
    bandwidth, late = np.array([1e-100, 1e100]), np.array([[0.0, 1e10], [0.0, np.inf]])
    found = least_times(bandwidth, late, np.array([1.0, 0.0]))
    assert found == pytest.approx([1e10, 0.0])


@st.composite
def timed_networks(draw) -> Topology:
    """Up to five ranks and a switch; whole latencies and bandwidths, so that time has ticks."""
    n = draw(st.integers(2, 5))
    vertices = n + draw(st.integers(0, 1))
    pairs = [(u, v) for u in range(vertices) for v in range(vertices) if u != v]
    ends = [(v, (v + 1) % vertices) for v in range(vertices)]
    ends += draw(st.lists(st.sampled_from(pairs), max_size=6))
    alpha = [draw(st.integers(0, 3)) for _ in ends]
    bandwidth = [draw(st.integers(1, 4)) for _ in ends]
    src, dst = zip(*ends, strict=True)
    return Topology(n, src, dst, alpha, bandwidth, num_vertices=vertices)  # type: ignore[arg-type]


def gathered(topology: Topology, nbytes: np.ndarray, target: int, seconds: int) -> int:
    """Bytes that reach a rank within so many seconds: a maximum flow over time, second by second.

    Data that enters a link in the second s leaves it in the second s + alpha.
    """
    graph = nx.DiGraph()
    for rank in range(topology.num_ranks):
        graph.add_edge("all", (rank, 0), capacity=int(nbytes[rank, target]))
    for s in range(seconds):
        for v in range(topology.num_vertices):
            graph.add_edge((v, s), (v, s + 1), capacity=10**9)
        columns = (topology.src, topology.dst, topology.alpha, topology.bandwidth)
        for u, v, alpha, bandwidth in zip(*(c.tolist() for c in columns), strict=True):
            if s + alpha < seconds:
                arc = (u, s), (v, s + int(alpha))
                old = graph.edges[arc]["capacity"] if graph.has_edge(*arc) else 0
                graph.add_edge(*arc, capacity=int(bandwidth) + old)
    return nx.maximum_flow_value(graph, "all", (target, seconds)) if seconds else 0


@st.composite
def bytes_between(draw, n: int) -> np.ndarray:
    """Bytes that each rank has for each other one, of shape (n, n)."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=n * n, max_size=n * n))
    nbytes = np.asarray(sizes, float).reshape(n, n)
    np.fill_diagonal(nbytes, 0.0)
    return nbytes


@settings(deadline=None, max_examples=150)
@given(timed_networks(), st.data())
def test_no_bound_is_above_the_maximum_flow_over_time(topology, data):
    """Of a gather to every rank: any cut over time, whatever was cut, and any set of vertices."""
    n, nbytes = topology.num_ranks, data.draw(bytes_between(topology.num_ranks))
    latencies, ranks = Latencies(topology), np.arange(n)
    inside = np.asarray(data.draw(st.lists(st.booleans(), min_size=topology.num_vertices,
                                           max_size=topology.num_vertices)))  # fmt: skip
    for found in (
        entering(latencies, nbytes, ranks, ranks),
        leaving(latencies, nbytes, ranks, ranks),
        across(latencies, inside, Listed(nbytes)),
    ):
        if not found.seconds:
            continue
        early = int(np.ceil(found.seconds * (1 - 1e-12))) - 1  # whole seconds before the bound
        short = [gathered(topology, nbytes, v, early) < int(nbytes[:, v].sum()) for v in range(n)]
        assert any(short), found


@settings(deadline=None, max_examples=60)
@given(timed_networks(), st.data())
def test_the_exact_arrival_is_the_maximum_flow_over_time(topology, data):
    """Within the tick in which the last of it comes."""
    n, nbytes = topology.num_ranks, data.draw(bytes_between(topology.num_ranks))
    latencies = Latencies(topology)
    known = entering(latencies, nbytes, np.arange(n), np.arange(n)).seconds
    if not known:
        return
    found = max(arrival_over_time(latencies, nbytes, known).seconds, known)
    assert any(
        gathered(topology, nbytes, v, int(np.ceil(found * (1 - 1e-9))) - 1)
        < int(nbytes[:, v].sum())
        for v in range(n)
    )
    # No second more than it takes, but for ticks and for data that moves within a second.
    enough = int(np.ceil(found * 49 / 48)) + 1
    assert all(gathered(topology, nbytes, v, enough) >= int(nbytes[:, v].sum()) for v in range(n))


@settings(deadline=None, max_examples=20)
@given(timed_networks(), st.data())
def test_the_exact_arrival_is_found_from_any_time_that_it_is_above(topology, data):
    """Flows are no less than cuts, to within one of the 48 ticks of the time that is known."""
    latencies, nbytes = Latencies(topology), data.draw(bytes_between(topology.num_ranks))
    ranks = np.arange(topology.num_ranks)
    least = entering(latencies, nbytes, ranks, ranks).seconds
    if not least:
        return
    found = arrival_over_time(latencies, nbytes, least / 2)
    assert found.seconds >= least * (1 - 1 / 48)
    assert nbytes[:, found.rank].any()
    assert arrival_over_time(latencies, nbytes, 2 * found.seconds).seconds == 0.0


@pytest.mark.parametrize("links", [1, 2, 5])
def test_latencies_of_whole_ticks_are_not_rounded_down(links):
    """A byte along a line, of a second per link, and one in which it enters the last."""
    nbytes = np.zeros((links + 1, links + 1))
    nbytes[0, links] = 1.0
    line = topologies.mesh(links + 1, alpha=1.0, bandwidth=1.0)
    found = arrival_over_time(Latencies(line), nbytes, 1.0)
    assert (found.seconds, found.rank) == (pytest.approx(links + 1, rel=1e-9), links)
