"""Expansions: built schedules are sound, and their costs equal the predictions as fractions.

Printed values: Tables 3.4 and A.1 and Figs. 3.1 and 3.2 of "Accelerating Collective
Communication for Distributed Machine Learning" (dissertation).
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.bounds.moore import Cost, cost, moore_steps
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.synth.direct_connect import Bfb, bfb_cost
from jaxcoll.synth.direct_connect.expansions import (
    Bidirectional,
    CartesianPower,
    DegreeExpansion,
    LineGraph,
    bfb_all_gather,
    line_graph_power_cost,
    product_cost,
    scatter_of,
)
from jaxcoll.synth.direct_connect.searched import base_all_gather
from jaxcoll.topologies import generative as gen

BASES = [
    gen.complete(2),
    gen.complete(3),
    gen.complete(5),
    gen.complete_bipartite(2),
    gen.complete_bipartite(3),
    gen.hamming(2, 3),
    gen.kautz(2, 1),
    gen.generalized_kautz(2, 5),
    gen.generalized_kautz(2, 7),
    gen.generalized_kautz(3, 10),
    gen.circulant(7, (2, 3)),
    gen.dense_circulant(2),
    gen.dense_circulant(3),
    gen.bidirectional_ring(2, 5),
    gen.bidirectional_ring(4, 4),
    gen.unidirectional_ring(1, 4),
    gen.unidirectional_ring(2, 3),
    gen.unidirectional_ring(3, 2),
    gen.diamond(),
    gen.de_bruijn(2, 2),
    gen.de_bruijn(2, 3),
    gen.modified_de_bruijn(2, 3),
    gen.modified_de_bruijn(3, 2),
    gen.distance_regular(4, 6),
    gen.twisted_hypercube(3),
    gen.twisted_torus(2, 4),
    gen.cartesian_product(gen.unidirectional_ring(1, 4), gen.complete(3)),
    gen.cartesian_product(gen.unidirectional_ring(2, 4), gen.unidirectional_ring(1, 3)),
]
EXPANSIONS = [
    LineGraph(),
    DegreeExpansion(2),
    DegreeExpansion(3),
    CartesianPower(2),
    CartesianPower(3),
    Bidirectional(),
]
MOST_RANKS = 256
MOST_ARCS = 4096


def applies(expansion, digraph) -> bool:
    size, degree = expansion.size(digraph.size, digraph.degree)
    if size > MOST_RANKS or size * degree > MOST_ARCS:
        return False
    if isinstance(expansion, DegreeExpansion):
        return not digraph.self_loops
    return not isinstance(expansion, Bidirectional) or gen.is_reverse_symmetric(digraph)


def check(expansion, digraph, schedule):
    """The expanded digraph and schedule, checked against the prediction."""
    before = cost(schedule, digraph.degree)
    expanded, result = expansion.all_gather(digraph, schedule)
    jc.verify(result)
    measured = cost(result, expanded.degree)
    predicted = expansion.cost(before, digraph.size, digraph.degree)
    assert (expanded.size, expanded.degree) == expansion.size(digraph.size, digraph.degree)
    assert result.topology == expanded.topology(
        schedule.topology.alpha[0], schedule.topology.bandwidth[0]
    )
    if isinstance(expansion, LineGraph):
        assert measured.steps <= predicted.steps
        assert measured.inverse_bandwidth <= predicted.inverse_bandwidth
        assert digraph.degree == 1 or measured.steps == predicted.steps
    else:
        assert measured == predicted
    return expanded, result


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(BASES), st.lists(st.sampled_from(EXPANSIONS), min_size=1, max_size=3))
def test_compositions_cost_what_is_predicted(base, chain):
    digraph, schedule = base, base_all_gather(base)
    for expansion in chain:
        if applies(expansion, digraph):
            digraph, schedule = check(expansion, digraph, schedule)
    if digraph.reversal is not None:
        scatter = scatter_of(digraph, schedule)
        jc.verify(scatter)
        assert scatter.topology == schedule.topology
        assert cost(scatter, digraph.degree) == cost(schedule, digraph.degree)
        jc.verify(jc.schedule.concatenate(scatter, schedule))


@pytest.mark.parametrize("expansion", EXPANSIONS, ids=repr)
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_each_expansion_of_each_base(base, expansion):
    if applies(expansion, base):
        check(expansion, base, base_all_gather(base))


@pytest.mark.parametrize(
    "base",
    [base for base in BASES if len(set(base.heads[: base.degree].tolist())) > 1],
    ids=lambda base: base.name,
)
def test_theorem_10(base):
    """With more than one out-neighbour, L of an optimal BFB schedule is one, at exactly 1/N more.

    Self-loops do not count as neighbours.
    """
    out = base.heads.reshape(base.size, base.degree)
    others = [set(row.tolist()) - {v} for v, row in enumerate(out)]
    if min(map(len, others)) < 2:
        return
    best, schedule = bfb_cost(base), bfb_all_gather(base)
    assert cost(schedule, base.degree) == best
    expanded, result = LineGraph().all_gather(base, schedule)
    predicted = Cost(best.steps + 1, best.inverse_bandwidth + Fraction(1, base.size))
    assert cost(result, base.degree) == predicted == bfb_cost(expanded)
    assert (best.steps == moore_steps(base.size, base.degree)) == (
        predicted.steps == moore_steps(expanded.size, base.degree)
    )


def test_line_graph_of_one_out_neighbour():
    ring = gen.unidirectional_ring(2, 4)
    expanded, result = LineGraph().all_gather(ring, bfb_all_gather(ring))
    assert cost(result) == bfb_cost(expanded) == Cost(4, Fraction(7, 8))
    assert LineGraph().cost(bfb_cost(ring), 4, 2) == Cost(4, Fraction(1))


# Printed (T_L, T_B): K2,2 of Fig. 3.1, L(K2,2) of Fig. 3.2, and rows of Tables 3.4 and A.1.
@pytest.mark.parametrize(
    ("base", "times", "steps", "inverse_bandwidth"),
    [
        (gen.complete_bipartite(2), 0, 2, Fraction(3, 4)),
        (gen.complete_bipartite(2), 1, 3, Fraction(1)),
        (gen.complete_bipartite(4), 1, 3, Fraction(1)),
        (gen.complete_bipartite(4), 2, 4, Fraction(33, 32)),
        (gen.complete_bipartite(4), 3, 5, Fraction(133, 128)),
        (gen.distance_regular(4, 32), 1, 5, Fraction(1)),
        (gen.distance_regular(4, 32), 2, 6, Fraction(129, 128)),
        (gen.modified_de_bruijn(4, 2), 1, 4, Fraction(1)),
        (gen.modified_de_bruijn(4, 2), 2, 5, Fraction(65, 64)),
        pytest.param(gen.circulant(16, (3, 4)), 3, 6, Fraction(261, 256), marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_printed_line_graphs(base, times, steps, inverse_bandwidth):
    digraph, schedule = base, base_all_gather(base)
    before = cost(schedule, base.degree)
    for _ in range(times):
        digraph, schedule = LineGraph().all_gather(digraph, schedule)
    assert cost(schedule, base.degree) == Cost(steps, inverse_bandwidth)
    assert line_graph_power_cost(before, base.size, base.degree, times) == Cost(
        steps, inverse_bandwidth
    )
    d, n = base.degree, base.size
    more = Fraction(d, d - 1) * (Fraction(1, n) - Fraction(1, d**times * n))
    assert inverse_bandwidth == before.inverse_bandwidth + more  # Corollary 7.1


@pytest.mark.parametrize(
    ("digraph", "steps", "inverse_bandwidth"),
    [
        (gen.de_bruijn(4, 4), 4, Fraction(85, 64)),
        (gen.generalized_kautz(4, 1024), 5, Fraction(341, 256)),
        (gen.generalized_kautz(4, 64), 3, Fraction(21, 16)),
        (gen.line_graph(gen.circulant(16, (3, 4)), 3), 6, Fraction(261, 256)),
        (gen.line_graph(gen.complete_bipartite(4), 3), 5, Fraction(133, 128)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_printed_breadth_first_costs(digraph, steps, inverse_bandwidth):
    assert bfb_cost(digraph) == Cost(steps, inverse_bandwidth)


def test_printed_powers():
    digraph, schedule = CartesianPower(2).all_gather(gen.diamond(), base_all_gather(gen.diamond()))
    assert cost(schedule) == Cost(6, Fraction(63, 64))
    _, line = LineGraph().all_gather(digraph, schedule)
    assert cost(line) == Cost(7, Fraction(1))
    base = gen.modified_de_bruijn(2, 4)
    digraph, schedule = CartesianPower(2).all_gather(base, base_all_gather(base))
    assert (cost(schedule), digraph.diameter) == (Cost(10, Fraction(255, 256)), 8)
    digraph, schedule = LineGraph().all_gather(digraph, schedule)
    assert (cost(schedule), digraph.diameter) == (Cost(11, Fraction(1)), 9)


# ---------------------------------------------------------------------- reduce_scatter


@pytest.mark.parametrize("expansion", EXPANSIONS, ids=repr)
@pytest.mark.parametrize(
    "base",
    [gen.generalized_kautz(2, 7), gen.diamond(), gen.complete_bipartite(2), gen.de_bruijn(2, 2)],
    ids=lambda base: base.name,
)
def test_reduce_scatter_by_way_of_the_transpose(base, expansion):
    if not applies(expansion, base):
        return
    scatter = bfb_all_gather(base.transpose()).reverse()
    jc.verify(scatter)
    expanded, result = expansion.reduce_scatter(base, scatter)
    jc.verify(result)
    assert result.collective.kind == "reduce_scatter"
    assert not result.collective.is_grouped
    gathered, gather = expansion.all_gather(base, bfb_all_gather(base))
    assert np.array_equal(expanded.heads, gathered.heads)
    jc.verify(jc.schedule.concatenate(result, gather))
    predicted = expansion.cost(cost(scatter, base.degree), base.size, base.degree)
    measured = cost(result, expanded.degree)
    assert measured.steps == predicted.steps
    assert measured.inverse_bandwidth <= predicted.inverse_bandwidth


# ---------------------------------------------------------------------- products by BFB


@pytest.mark.parametrize(
    "factors",
    [
        (gen.bidirectional_ring(2, 3), gen.bidirectional_ring(2, 5)),
        (gen.complete(2), gen.circulant(7, (2, 3))),
        (gen.unidirectional_ring(1, 4), gen.unidirectional_ring(1, 3)),
        (gen.dense_circulant(2), gen.complete_bipartite(3)),
        (gen.bidirectional_ring(2, 8), gen.unidirectional_ring(1, 4), gen.complete(3)),
    ],
    ids=lambda factors: " x ".join(factor.name for factor in factors),
)
def test_products_of_optimal_simple_factors(factors):
    predicted = product_cost(factors, [bfb_cost(factor) for factor in factors])
    digraph = gen.cartesian_product(*factors)
    schedule = bfb_all_gather(digraph)
    jc.verify(schedule)
    assert cost(schedule) == bfb_cost(digraph) == predicted
    assert predicted is not None
    assert predicted.steps == sum(factor.diameter for factor in factors)
    assert predicted.inverse_bandwidth == Fraction(digraph.size - 1, digraph.size)


def test_theorem_13_needs_simple_factors():
    factors = (gen.unidirectional_ring(2, 4), gen.unidirectional_ring(1, 3))
    assert product_cost(factors, [bfb_cost(factor) for factor in factors]) is None
    schedule = bfb_all_gather(gen.cartesian_product(*factors))
    assert cost(schedule) == Cost(5, Fraction(1))
    factors = (gen.diamond(), gen.complete(2))  # simple, but not optimal by BFB
    assert product_cost(factors, [bfb_cost(factor) for factor in factors]) is None


# ---------------------------------------------------------------------- bad input


def test_bases_that_an_expansion_is_not_defined_for():
    kautz, bruijn = gen.generalized_kautz(2, 7), gen.de_bruijn(2, 3)
    with pytest.raises(TopologyError, match="not isomorphic to its transpose"):
        Bidirectional().all_gather(kautz, bfb_all_gather(kautz))
    with pytest.raises(TopologyError, match="not isomorphic to its transpose"):
        scatter_of(kautz, bfb_all_gather(kautz))
    with pytest.raises(TopologyError, match="without self-loops"):
        DegreeExpansion(2).all_gather(bruijn, bfb_all_gather(bruijn))
    for make in (DegreeExpansion, CartesianPower):
        with pytest.raises(TopologyError, match="at least 2"):
            make(1)
    with pytest.raises(TopologyError, match="one cost per factor"):
        product_cost([kautz], [])


def test_schedules_that_cannot_be_expanded():
    base = gen.complete_bipartite(2)
    schedule = bfb_all_gather(base)
    with pytest.raises(CollectiveError, match="take an all_gather of all ranks"):
        LineGraph().all_gather(base, schedule.reverse())
    with pytest.raises(CollectiveError, match="expands a reduce_scatter"):
        LineGraph().reduce_scatter(base, schedule)
    for expand in (LineGraph().all_gather, LineGraph().reduce_scatter):
        with pytest.raises(ScheduleError, match="must be a Schedule"):
            expand(base, "schedule")  # type: ignore[arg-type]
        with pytest.raises(TopologyError, match="must be a Digraph"):
            expand(base.topology(), schedule)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="whose links differ"):
        LineGraph().all_gather(gen.bidirectional_ring(2, 4), schedule)
    lacking = dataclasses.replace(
        schedule,
        step_ptr=np.append(schedule.step_ptr[:-1], schedule.num_sends - 1),
        edge=schedule.edge[:-1],
        chunk=schedule.chunk[:-1],
        reduce=schedule.reduce[:-1],
    )
    with pytest.raises(ScheduleError):
        LineGraph().all_gather(base, lacking)
    topology = jc.Topology(4, base.tails, base.heads, [1e-6] * 8, [1e9] * 7 + [2e9])  # type: ignore[arg-type]
    other = Bfb().synthesize(topology, schedule.collective)
    with pytest.raises(TopologyError, match="one alpha and bandwidth"):
        LineGraph().all_gather(base, other)
    grouped = jc.Collective("all_gather", 4, groups=((0, 1, 2), (3,)))
    rounds = jc.synth.Ring().synthesize(base.topology(), grouped)
    with pytest.raises(CollectiveError, match="all ranks in order"):
        LineGraph().all_gather(base, rounds)
