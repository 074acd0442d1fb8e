"""The search for bandwidth-optimal all_gathers: those found are; impossible ones are refused."""

from __future__ import annotations

import pytest

import jaxcoll as jc
from jaxcoll.bounds.moore import optimality
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.synth.direct_connect.searched import balanced_all_gather
from jaxcoll.topologies import generative as gen

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


def test_bad_input():
    ring = gen.unidirectional_ring(1, 4)
    with pytest.raises(TopologyError, match="self-loops"):
        balanced_all_gather(gen.de_bruijn(2, 2), 3, 2)
    with pytest.raises(TopologyError, match="multiple of 2 chunks"):
        balanced_all_gather(gen.diamond(), 3, 1)
    with pytest.raises(TopologyError, match="more than 30000"):
        balanced_all_gather(gen.hypercube(6), 8, 6)
    with pytest.raises(TopologyError, match="was found in"):
        balanced_all_gather(gen.modified_de_bruijn(2, 4), 5, 2, seconds=0.01)
    with pytest.raises(CollectiveError, match="above 0"):
        balanced_all_gather(ring, 3, 1, seconds=0)
    with pytest.raises(TopologyError, match="must be a Digraph"):
        balanced_all_gather(ring.topology(), 3, 1)  # type: ignore[arg-type]
