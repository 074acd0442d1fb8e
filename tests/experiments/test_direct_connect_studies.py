"""What the tables and figures on direct-connect topologies claim, of our own numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from experiments.direct_connect.notation import (
    built_cost,
    half_to_even,
    parse,
    predicted,
    rate_bound,
)
from experiments.direct_connect.printed import Printed
from experiments.errors import ConfigError
from tests.experiments.runs import small_run

# In one process, which makes the small run of every study once.
pytestmark = pytest.mark.xdist_group("studies")


def rows_of(name: str) -> list[dict[str, Any]]:
    return small_run(f"direct-connect-{name}").rows


# ---------------------------------------------------------------------- tables


def test_tori_and_hypercubes_of_table_3_6_are_optimal():
    rows = rows_of("table-3-6")
    assert len(rows) == 10
    for row in rows:
        assert row["T_L"] == row["least T_L"]
        assert row["optimal"]
        assert row["T_B"] == row["least T_B"] == 1 - 1 / row["ranks"]


def test_distance_regular_graphs_are_those_of_table_a_2():
    rows = rows_of("table-a-2")
    assert len(rows) == 13
    for row in rows:
        for column in ("T_L", "T_L*", "T_L**"):
            assert row[column] == row[f"paper {column}"]
        assert row["bandwidth-optimal"]
        assert row["reverse-symmetric"]


def test_families_have_what_table_a_3_says_but_where_it_errs():
    rows = rows_of("table-a-3")
    assert {row["topology"]: row["differs"] for row in rows if row["differs"]} == {
        "Pi(4,64)": "reverse-symmetric",
        "C(15,{1,4,5})": "bandwidth-optimal",
        "DBJ(4,1)": "bandwidth-optimal",
    }
    assert all(row["paper T_L"] in (None, row["T_L"]) for row in rows)
    kautz = [row for row in rows if row["family"] == "generalized Kautz"]
    assert all(row["T_L"] <= row["T_L*"] + 1 for row in kautz)


@pytest.mark.parametrize("name", ["table-3-4", "table-a-1"])
def test_frontiers_as_built_are_the_printed_ones(name):
    rows = rows_of(name)
    for row in rows:
        for column in ("T_L", "T_B", "diameter"):
            assert row[column] == row[f"paper {column}"]
        if row.get("paper all_reduce us"):
            assert round(row["all_reduce us"], 1) == row["paper all_reduce us"]
        if row["MCF"] and row.get("paper MCF") and row["topology"] != "L(DBJMod(4,2))":
            # Three digits are printed, some cut off.
            assert row["MCF"] == pytest.approx(row["paper MCF"], rel=0.005)
        if row["topology"] == "bound" and "all_to_all us" in row:
            assert round(row["all_to_all us"], 1) == row["paper all_to_all us"]
    by_size: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_size.setdefault(row["N"], []).append(row)
    for *points, bound in by_size.values():
        assert [p["T_L"] for p in points] == sorted({p["T_L"] for p in points})
        costs = [Fraction(p["exact T_B"]) for p in points]
        assert costs == sorted(set(costs), reverse=True)
        assert costs[-1] == Fraction(bound["exact T_B"])
        assert all(p["MCF"] is None or p["MCF"] <= bound["MCF"] for p in points)


def test_topologies_of_the_testbed_are_optimal_in_bandwidth():
    rows = rows_of("table-3-5")
    assert [row["N"] for row in rows] == list(range(5, 13))
    for row in rows:
        assert row["T_L"] == row["paper T_L"] == row["least T_L"]
        assert row["bandwidth-optimal"]
        assert row["T_B"] == pytest.approx(2 * (1 - 1 / row["N"]))


# ---------------------------------------------------------------------- what they are made of


@pytest.mark.parametrize(
    "text",
    ["K3*2", "H(2,3)", "L^2(Diamond^2)", "L(K5)", "(UniRing(1,4) x UniRing(1,3))^2", "DBJMod(2,3)"],
)
def test_predictions_are_met(text):
    assert predicted(parse(text)).cost == built_cost(parse(text))


@pytest.mark.parametrize(
    "text", ["", "K", "L(K5", "K5)", "K5 x", "Kx5", "L^(K5)", "C(16,3)", "K5^", "Torus(4)"]
)
def test_what_is_no_topology_is_refused(text):
    with pytest.raises(ConfigError, match="cannot read the topology"):
        parse(text)


def test_products_that_no_theorem_covers_are_refused():
    with pytest.raises(ConfigError, match="Theorem 13"):
        predicted(parse("UniRing(2,4) x UniRing(1,3)"))


def test_bounds_and_rounding_are_the_printed_ones():
    assert rate_bound(1024, 4) == Fraction(4, 4667)
    assert rate_bound(5, 4) == 1
    assert half_to_even(Fraction(21, 16)) == 1.312


def test_printed_numbers_need_ours():
    row = Printed("K5", {"T_L": 1.0}).beside({"T_L": 1, "T_B": 0.8})
    assert row == {"T_L": 1, "paper T_L": 1.0, "T_B": 0.8}
    with pytest.raises(ConfigError, match="'T_C'; known: T_L"):
        Printed("K5", {"T_C": 1.0}).beside({"T_L": 1})
    with pytest.raises(ConfigError, match="above 0"):
        Printed("K5", {"T_L": 0.0})
