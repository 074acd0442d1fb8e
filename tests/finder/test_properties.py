"""Diameters and bounds of all-to-all rates of constructions, against the digraphs built."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.moore import moore_steps
from jaxcoll.finder import Construction, FoundTopology, frontiers
from jaxcoll.finder.construction import diameter, rate_bounds
from jaxcoll.finder.search import search
from jaxcoll.synth.routing.concurrent_flow import digraph_flow


@pytest.fixture(scope="module")
def cells():
    return search(range(2, 33), 4)


@pytest.fixture
def by_formula(monkeypatch):
    """No linear program, for digraphs of any size."""
    monkeypatch.setattr("jaxcoll.finder.construction.SOLVED", 0)
    rate_bounds.cache_clear()
    yield
    rate_bounds.cache_clear()


def test_diameters_are_those_of_the_digraphs(cells):
    for (size, degree), candidates in cells.items():
        for candidate in candidates:
            point = FoundTopology(size, degree, candidate)
            built = candidate.construction.digraph().diameter
            assert point.diameter == built, candidate.construction
            assert diameter(candidate.construction) == built, candidate.construction


@settings(max_examples=60)
@given(data=st.data())
def test_bounds_hold_for_the_rate_of_the_linear_program(cells, data):
    cell = data.draw(st.sampled_from(sorted(cells)))
    candidate = data.draw(st.sampled_from(cells[cell]))
    _check(candidate.construction)


@pytest.mark.usefixtures("by_formula")
def test_bounds_by_formula_hold_for_the_rate_of_the_linear_program(cells):
    for (size, degree), candidates in cells.items():
        if size <= 20 and degree in (2, 4):
            for candidate in candidates[:3]:
                _check(candidate.construction)


def _check(construction: Construction) -> None:
    digraph = construction.digraph()
    rate = digraph_flow(digraph.size, digraph.tails, digraph.heads)
    bounds = rate_bounds(construction)
    assert bounds.lower <= rate.upper, construction
    assert bounds.upper >= rate.lower, construction
    assert bounds.lower > 0


@pytest.mark.parametrize(
    "parts",
    [
        (("unidirectional_ring", (1, 4)), ("unidirectional_ring", (1, 7))),
        (("bidirectional_ring", (2, 5)), ("complete_bipartite", (3,))),
        (("circulant", (7, (2, 3))), ("complete", (2,)), ("unidirectional_ring", (1, 3))),
        (("generalized_kautz", (2, 9)), ("bidirectional_ring", (2, 4))),
    ],
)
def test_the_rate_of_a_product_is_the_least_of_its_factors(parts):
    made = Construction("product", (), tuple(Construction(*part) for part in parts))
    bounds = rate_bounds(made)
    digraph = made.digraph()
    rate = digraph_flow(digraph.size, digraph.tails, digraph.heads)
    assert bounds.is_exact
    assert float(rate.lower) == pytest.approx(float(bounds.lower), rel=1e-6)


def test_a_table_has_diameter_and_rate_of_every_point(tmp_path):
    kept = frontiers(60, 4)
    kept.write_table(tmp_path / "table.csv")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert len(rows) == sum(len(kept[n].points) for n in kept)
    assert {int(row["n"]) for row in rows} == set(kept)
    for row in rows:
        assert int(row["T_L"]) >= int(row["diameter"]) >= moore_steps(int(row["n"]), 4)
        assert 0 < float(row["rate"]) <= float(row["rate at most"])
        assert (row["exact"] == "True") == (row["rate"] == row["rate at most"])
