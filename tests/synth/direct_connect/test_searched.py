"""Diamond and modified de Bruijn digraphs have the schedules of Table A.3; BFB finds others."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

import jaxcoll as jc
from jaxcoll.bounds.moore import optimality
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.synth.direct_connect.searched import base_all_gather, base_cost, searched_all_gather
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies import generative as gen

# Table A.3: T_L of a bandwidth-optimal schedule.
TABLE_A3 = [
    (gen.diamond(), 3),
    (gen.modified_de_bruijn(2, 3), 4),
    (gen.modified_de_bruijn(2, 4), 5),
    (gen.modified_de_bruijn(3, 2), 3),
    (gen.modified_de_bruijn(4, 2), 3),
]


@pytest.mark.parametrize(("digraph", "steps"), TABLE_A3, ids=lambda value: str(value))
def test_table_a3(digraph, steps):
    schedule = base_all_gather(digraph, alpha=1e-5, link_bandwidth=25e9)
    jc.verify(schedule)
    found = optimality(schedule)
    assert found.bandwidth
    assert found.cost.steps == steps
    assert found.cost.inverse_bandwidth == Fraction(digraph.size - 1, digraph.size)
    assert bfb_cost(digraph).inverse_bandwidth > found.cost.inverse_bandwidth
    assert schedule.topology == digraph.topology(1e-5, 25e9)


@pytest.mark.parametrize(("digraph", "steps"), TABLE_A3, ids=lambda value: str(value))
def test_reduce_scatters_are_as_fast_as_all_gathers(digraph, steps):
    """Corollary 1.2: by the all_gather of the transpose, which is searched where it must be."""
    transpose = digraph.transpose()
    if gen.is_reverse_symmetric(digraph):
        assert searched_all_gather(transpose) is None
        return
    scatter = base_all_gather(transpose).reverse()
    jc.verify(scatter)
    assert scatter.topology == digraph.topology()
    assert optimality(scatter).bandwidth
    assert optimality(scatter).cost == base_cost(transpose) == base_cost(digraph)
    assert base_cost(digraph).steps == steps


def test_flows_of_diamond_and_its_square_prove_the_rate_of_the_paper():
    square = gen.cartesian_power(gen.diamond(), 2)
    for digraph, rate in ((gen.diamond(), Fraction(3, 20)), (square, Fraction(3, 160))):
        found = digraph_flow(digraph.size, digraph.tails, digraph.heads)
        assert found.lower == found.upper == rate
    assert f"{float(rate) - 1e-9:.2e}" == "1.87e-02"


def test_diamond_has_the_all_to_all_rate_of_the_paper():
    """LP (A.1) with links of 1: 3/20; Table A.1 prints an eighth of it for Diamond^2, 1.87e-2."""
    diamond = gen.diamond()
    n, arcs = diamond.size, diamond.num_arcs
    balance = np.zeros((n, n, n * arcs + 1))  # commodity by source, vertex, flow or rate
    for source in range(n):
        first = source * arcs
        for arc, (u, v) in enumerate(zip(diamond.tails, diamond.heads, strict=True)):
            balance[source, v, first + arc] += 1
            balance[source, u, first + arc] -= 1
        balance[source, :, -1] = -1
        balance[source, source, -1] = n - 1
    loads = np.hstack([np.tile(np.eye(arcs), n), np.zeros((arcs, 1))])
    rate = np.append(np.zeros(n * arcs), -1)
    found = linprog(
        rate, loads, np.ones(arcs), balance.reshape(n * n, -1), np.zeros(n * n), method="highs"
    )
    assert found.x[-1] == pytest.approx(3 / 20, abs=1e-9)


def test_other_bases_have_breadth_first_schedules():
    assert searched_all_gather(gen.de_bruijn(2, 3)) is None
    assert base_all_gather(gen.complete(4)).provenance.synthesizer == "bfb"
