"""Distances of many sources at once, beside those of networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.links import group_by
from jaxcoll.numerics.connectivity import hops_from


@given(st.data())
def test_distances_are_those_of_networkx(data):
    size = data.draw(st.integers(1, 90))
    degree = data.draw(st.integers(0, 3))
    seed = data.draw(st.integers(0, 2**16))
    random = np.random.default_rng(seed)
    tails, heads = random.integers(0, size, (2, size * degree))
    sources = random.integers(0, size, data.draw(st.integers(0, 2 * size)))
    columns = data.draw(st.integers(0, size))
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(size))
    graph.add_edges_from(zip(tails.tolist(), heads.tolist(), strict=True))
    expected = np.full((len(sources), size), -1)
    for row, source in enumerate(sources.tolist()):
        for vertex, distance in nx.single_source_shortest_path_length(graph, source).items():
            expected[row, vertex] = distance
    ptr, arc = group_by(tails, size)
    out = np.empty((len(sources), columns), np.int32)
    all_reached = hops_from(ptr, heads[arc], sources, out)
    np.testing.assert_array_equal(out, expected[:, :columns])
    assert all_reached == bool((expected >= 0).all())
