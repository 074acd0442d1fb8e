"""Places where the dissertation's numbers disagree with one another, or with its own formulas."""

from __future__ import annotations

from fractions import Fraction

import pytest

from experiments.direct_connect.baselines import MIB, Machine, double_tree_us, shifted_ring
from experiments.direct_connect.many_ranks import distance_rate
from experiments.direct_connect.notation import parse
from experiments.direct_connect.paper import half_to_even
from experiments.direct_connect.predictions import predicted, rate_bound
from jaxcoll.bounds.moore import Cost
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from tests.experiments.runs import small_run

MACHINE = Machine(10.0, 0.0, 100.0)
BEST = "L^3(C(16,{3,4}))"


def test_a_megabyte_is_2_to_the_20():
    """M/B of 1 MB at 100 Gbit/s is 83.886 us: the bound of Table 3.4 needs it, not 80."""
    assert round(MACHINE.buffer_us(MIB), 3) == 83.886
    assert round(MACHINE.time_us(Cost(5, Fraction(1023, 1024)), MIB), 1) == 267.6
    assert round(MACHINE.buffer_us(MIB) * 4 / 1024 / float(rate_bound(1024, 4)), 1) == 382.3
    assert (half_to_even(Fraction(21, 16)), half_to_even(Fraction(261, 256))) == (
        1.312,
        1.020,
    )


def test_the_printed_rate_of_the_best_topology_is_above_what_distances_allow():
    allowed = distance_rate(parse(BEST).digraph())
    assert f"{float(allowed):.4g}" == "0.0008095"
    assert allowed < Fraction("8.12e-4")


@pytest.mark.slow
def test_it_does_not_exchange_faster_than_the_kautz_digraph():
    digraph = parse(BEST).digraph()
    assert digraph_flow(1024, digraph.tails, digraph.heads).upper < Fraction("8.0e-4")


def test_three_bidirectional_rings_are_one_way_rings():
    """L(BiRing(1,4)^3 x UniRing(1,2)) is of degree 4 and takes 11 steps with one-way rings only."""
    found = predicted(parse("L(UniRing(1,4)^3 x UniRing(1,2))"))
    assert (found.size, found.degree, found.cost) == (512, 4, Cost(11, Fraction(1)))


def test_the_shifted_ring_of_table_3_4_is_in_other_units():
    assert round(MACHINE.time_us(shifted_ring(1024), MIB), 1) == 20627.6
    assert 2 * (1024 * MACHINE.alpha_us + MACHINE.buffer_us(10**6)) == 20640


def test_ratios_of_figure_3_7_are_not_those_of_table_3_4():
    """Printed are 56 and 10 times the best of Table 3.4, which takes 291.0 us."""
    best = MACHINE.time_us(predicted(parse(BEST)).cost, MIB)
    assert round(best, 1) == 291.0
    assert round(20640 / best) == 71
    trees = double_tree_us(MACHINE, 1024, MIB, at_once=False)
    assert round(trees) == 1434
    assert round(trees / best, 1) == 4.9


def test_the_slides_square_the_wrong_graph():
    assert predicted(parse("L(DBJMod(2,4)^2)")).cost == Cost(11, Fraction(1))
    line = parse("L(DBJMod(2,4))^2")
    assert predicted(line).cost == Cost(12, Fraction(33, 32))


def test_sccls_seconds_on_the_torus_are_those_of_one_chunk():
    """The slides give 60 s, which is of two chunks in Table 3.6."""
    row = next(
        row for row in small_run("direct-connect-table-3-6").rows if row["topology"] == "torus 16"
    )
    assert row["SCCL s, printed"] == 17.5
