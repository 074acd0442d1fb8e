"""The search for bandwidth-optimal all_gathers finds them, or proves that there are none."""

from __future__ import annotations

import pytest

import jaxcoll as jc
from jaxcoll.bounds.moore import optimality
from jaxcoll.topologies import generative as gen
from tests.synth.direct_connect.balanced_search import balanced_all_gather

# Digraph, the T_L of Table A.3 or of BFB, chunks per shard.
FOUND = [
    (gen.diamond(), 3, 2),
    (gen.diamond().transpose(), 3, 2),
    (gen.modified_de_bruijn(2, 3), 4, 2),
    (gen.modified_de_bruijn(3, 2), 3, 3),
    pytest.param(gen.modified_de_bruijn(4, 2), 3, 4, marks=pytest.mark.slow),
    (gen.unidirectional_ring(1, 5), 4, 1),
    (gen.unidirectional_ring(2, 3), 2, 2),
    (gen.complete(4), 1, 1),
    (gen.complete_bipartite(2), 2, 2),
    (gen.dense_circulant(3), 2, 3),
    pytest.param(gen.modified_de_bruijn(2, 4), 5, 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("digraph", "steps", "chunks"), FOUND, ids=lambda value: getattr(value, "name", str(value))
)
def test_found_all_gathers_are_bandwidth_optimal(digraph, steps, chunks):
    found = balanced_all_gather(digraph, steps, chunks, 250)
    assert found is not None
    schedule = found.write(1e-6, 1e9, "balanced_search")
    jc.verify(schedule)
    assert optimality(schedule).bandwidth
    assert schedule.num_steps == steps


@pytest.mark.parametrize(
    ("digraph", "steps", "chunks"),
    [
        (gen.complete_bipartite(2), 1, 2),  # the diameter is 2
        (gen.modified_de_bruijn(2, 3), 3, 2),
        (gen.modified_de_bruijn(2, 3), 3, 4),
        (gen.kautz(2, 1), 2, 2),  # its best BFB schedule has T_B 1
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_impossible(digraph, steps, chunks):
    assert balanced_all_gather(digraph, steps, chunks) is None
