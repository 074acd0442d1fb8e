"""Counts of the fastest synthesizers, and the few names that stand for all, on drawn records."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import choosing, page_tables, recording
from experiments.benchmarks.default import which_synthesizer
from jaxcoll.synth import SYNTHESIZERS

NAMES = "abcd"
RATIOS = st.sampled_from([1.0, 1.005, 1.03, 1.2, 3.0])


@st.composite
def rows(draw):
    """Records in which the least ratio of each case is 1, as measured ones have it."""
    found = []
    for _ in range(draw(st.integers(1, 8))):
        over = draw(st.dictionaries(st.sampled_from(NAMES), RATIOS, min_size=1))
        over[draw(st.sampled_from(sorted(over)))] = 1.0
        found.append({"over": over})
    return found


def near(rows, names) -> int:
    best = (min(row["over"].get(name, math.inf) for name in names) for row in rows)
    return sum(over <= choosing.NEAR for over in best)


@given(rows(), st.integers(1, 4))
def test_no_other_names_are_near_more_often(rows, count):
    found = choosing.few(rows, count)
    assert len(set(found.names)) == len(found.names) <= count
    assert found.near == near(rows, found.names)
    sets = itertools.combinations_with_replacement(NAMES, count)
    assert found.near == max(near(rows, names) for names in sets)
    best = [min(row["over"].get(name, math.inf) for name in found.names) for row in rows]
    assert found.worst == max((each for each in best if each < math.inf), default=math.inf)


@given(rows())
def test_counts_are_those_of_the_rows(rows):
    found = {count.name: count for count in choosing.counts(rows)}
    assert set(found) == {name for row in rows for name in row["over"]}
    for name, count in found.items():
        ratios = [row["over"][name] for row in rows if name in row["over"]]
        assert count.defined == len(ratios)
        assert count.fastest == sum(ratio <= choosing.WITHIN for ratio in ratios)
        alone = [row for row in rows if choosing.fastest(row) == [name]]
        assert count.alone == len(alone)
    wins = [count.fastest for count in choosing.counts(rows)]
    assert wins == sorted(wins, reverse=True)


def test_the_fastest_come_first_and_those_within_a_hundredth_count():
    row = {"over": {"ring": 1.009, "tacos": 1.0, "tree": 1.011}}
    assert choosing.fastest(row) == ["tacos", "ring"]


def test_the_page_places_every_synthesizer_and_names_no_other():
    """A new one is among the five, or a baseline: its author says which."""
    page = (recording.ROOT / "docs/which-synthesizer.md").read_text(encoding="utf-8")
    prose = re.sub(r"<!-- rows.*?<!-- end of rows -->", "", page, flags=re.DOTALL)
    said = set(re.findall(r"`([a-z0-9_]+)`", prose)) - {"links", "steps", "rounds"}
    names = set(SYNTHESIZERS)
    assert said - {"which_synthesizer"} == names
    five = prose.partition("## Five names")[2].partition("A broadcast")[0]
    best = choosing.few(list(page_tables.which_rows().values()), 5)
    assert {*best.names, "exchange"} == set(re.findall(r"`([a-z_]+)`", five))


def test_rows_of_a_network_are_recorded_and_not_run_a_second_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page_tables, "WHICH", tmp_path / "which.json")
    monkeypatch.setattr(page_tables, "write", list)
    monkeypatch.chdir(tmp_path)
    options = ["--networks", "switch of 8", "--collectives", "all_gather", "--orders", "links"]
    monkeypatch.setattr(which_synthesizer, "NAMES", ("ring", "direct"))
    which_synthesizer.main([*options, "--record"])
    known = page_tables.which_rows()
    sizes = which_synthesizer.SIZES
    assert list(known) == [f"switch of 8 all_gather links {size}" for size in sizes]
    small = known["switch of 8 all_gather links 1 KiB"]
    # Both ways round a ring of eight are four steps; a switch delivers directly in one.
    assert small["over"] == pytest.approx({"direct": 1.0, "ring": 4.0}, rel=0.05)
    monkeypatch.setattr(which_synthesizer, "measure", None)
    which_synthesizer.main([*options, "--record"])
    assert page_tables.which_rows() == known
