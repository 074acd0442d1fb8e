"""The benchmark of expansions: its rows on small bases."""

from __future__ import annotations

from fractions import Fraction

from experiments.benchmarks.networks import TABLE_3_4, expanded_row
from jaxcoll.bounds.moore import Cost
from jaxcoll.synth.direct_connect.expansions import LineGraph
from jaxcoll.topologies import generative


def test_a_row():
    found = expanded_row(generative.complete_bipartite(2), (LineGraph(),), Cost(3, Fraction(1)))
    assert found.pop("seconds") >= 0
    assert found == {
        "network": "L(K2,2)",
        "ranks": 8,
        "sends": 112,
        "T_L": 3,
        "T_B": "1",
        "diameter": 3,
        "as in the paper": True,
    }


def test_networks_have_1024_ranks_of_degree_4():
    for base, chain, _ in TABLE_3_4:
        size, degree = base().size, base().degree
        for expansion in chain:
            size, degree = expansion.size(size, degree)
        assert (size, degree) == (1024, 4)
