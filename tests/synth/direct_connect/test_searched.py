"""Diamond and modified de Bruijn digraphs have the schedules of Table A.3; BFB finds others."""

from __future__ import annotations

from fractions import Fraction

import pytest

import jaxcoll as jc
from jaxcoll.bounds.moore import optimality
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.synth.direct_connect.searched import base_all_gather, searched_all_gather
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


def test_other_bases_have_breadth_first_schedules():
    assert searched_all_gather(gen.de_bruijn(2, 3)) is None
    assert base_all_gather(gen.complete(4)).provenance.synthesizer == "bfb"
    assert searched_all_gather(gen.diamond().transpose()) is None
