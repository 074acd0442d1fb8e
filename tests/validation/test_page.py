"""The page of predicted and measured times is what its command writes, and bold is what misses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxcoll.measured import MACHINES, tables
from jaxcoll.validation import errors, predictions
from jaxcoll.validation.page import FIGURES, SECTIONS, page, points

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "validation.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(SECTIONS) - {"links"}))
def test_a_part_of_the_page_is_what_the_command_writes(name):
    assert "\n".join(SECTIONS[name](0)).rstrip("\n") in PAGE


@pytest.mark.slow
def test_the_page_is_what_the_command_writes():
    assert page() == PAGE


def test_figures_lie_beside_the_page_and_have_a_point_per_prediction():
    for path in FIGURES.values():
        assert f"]({path})" in PAGE
        assert (DOCS / path).read_bytes().startswith(b"\x89PNG")
    shown = points("ranks")
    assert sum(map(len, shown.values())) == len(predictions("ranks"))
    first = predictions("ranks")[0]
    assert shown[first.curve.machine][0] == (first.seconds, first.predicted)


def test_every_table_and_machine_is_on_it():
    assert all(f"| {table.name} | {table.rows} |" in PAGE for table in tables())
    assert all(f"\n| {name} |" in PAGE for name in MACHINES)


def test_bold_is_beyond_the_aim():
    cells = re.findall(r"\| (\d+) \| (\*{0,2}[\d.]+\*{0,2}) \| (\*{0,2}[+-]\d+\*{0,2}) \|", PAGE)
    assert len(cells) > 100
    found = errors(predictions("sizes"), ("machine", "size_class"))
    for (machine, words), each in found.items():
        aim = {"1 to 64 MiB": 0.12, "from 64 MiB": 0.05}.get(words, float("inf"))
        mean = f"{100 * each.mean:.1f}"
        shown = f"**{mean}**" if each.mean > aim else mean
        (row,) = [
            line for line in PAGE.partition("By collective")[0].splitlines()
            if line.startswith(f"| {machine} |")
        ]  # fmt: skip
        assert f"| {each.rows} | {shown} |" in row


README = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())


def means(way: str, words: str, is_fugaku: bool) -> list[float]:
    found = errors(predictions(way), ("machine", "size_class"))
    return sorted(
        100 * each.mean
        for (machine, size), each in found.items()
        if size == words and machine.startswith("fugaku") == is_fugaku
    )


def test_the_readme_claims_no_less_error_than_there_is():
    assert f"{sum(table.rows for table in tables()):,} published times" in README
    gpu, fugaku = (means("sizes", "from 64 MiB", each) for each in (False, True))
    assert f"the mean error per GPU machine is {gpu[0]:.1f} to {gpu[-1]:.1f} % (" in README
    large = [each for each in predictions("sizes") if each.size_class == "from 64 MiB"]
    worst = max(abs(each.error) for each in large)
    assert f"({fugaku[0]:.0f} to {fugaku[-1]:.0f} % on Fugaku" in README
    assert f"single rows up to {100 * worst:.0f} %)" in README


@pytest.mark.slow
def test_the_readme_claims_no_less_error_of_fitted_links_than_there_is():
    large, small = (means("links", words, False) for words in ("from 64 MiB", "1 to 64 MiB"))
    assert f"it is {large[0]:.0f} to {large[-1]:.0f} %, and" in README
    assert f"and {small[0]:.0f} to {small[-1]:.0f} % below 64 MiB (" in README


def test_another_seed_is_another_page():
    assert "\n".join(SECTIONS["sizes"](1)).strip() not in PAGE
    assert "\n".join(SECTIONS["tables"](1)).strip() not in PAGE
