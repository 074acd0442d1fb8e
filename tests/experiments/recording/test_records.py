"""Recorded runs: when they are stale, which columns are compared, how they are kept."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from experiments import overview, page_tables, recording
from experiments.config import EXPERIMENTS
from experiments.study import describe_machine

NAME = "tacos-fig-14"
ROWS = [{"network": "mesh", "spans": 4, "us": 1.23456789, "paper us": None}]


def run_of(rows, small="", name=NAME, size="ci") -> recording.Run:
    content = {"title": "Fig. 0", "rows": rows, "remarks": ["so"]}
    return recording.recorded(name, size, content, small)


@pytest.mark.parametrize("name", overview.studies())
@pytest.mark.in_every_run(
    "autoccl-claims",
    "direct-connect-table-a-3",
    "forestcoll-fig-4-10",
    "multitree-fig-11a",
    "tacos-fig-2a",
    "tensorstate-fsdp-fig-4-13",
)
def test_recorded_runs_are_current(name):
    """`python -m experiments.overview --stale` records again what is not."""
    assert not recording.stale(name, recording.load(name))


@pytest.mark.parametrize("name", overview.studies())
def test_recorded_runs_say_how_they_were_made(name):
    for size, run in recording.load(name).items():
        assert run.command == f"python -m experiments experiment={name} size={size}"
        assert run.commit
        assert run.date >= "2026-11-22"
        assert {"cpu", "cores", "python", "jax"} <= run.machine.keys()


def test_the_table_of_the_page_is_what_is_recorded():
    """With the notes of one study of each paper: Hydra takes a tenth of a second for each."""
    text, papers = overview.PAGE.read_text(), {}
    for name in overview.studies():
        size, run = overview.shown(recording.load(name))
        assert overview.line(name, size, run) + "\n" in text
        papers[EXPERIMENTS[name].function.partition(".")[0]] = name, size, run
    for chosen in papers.values():
        assert "\n".join(overview.section(*chosen)) + "\n" in text


@pytest.mark.slow
def test_the_page_is_what_is_recorded():
    """`python -m experiments.overview` writes it."""
    assert overview.PAGE.read_text() == overview.page(overview.studies())


def test_records_are_of_studies():
    assert {path.stem for path in recording.RECORDS.iterdir()} == set(overview.studies())


def test_a_record_is_read_as_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "RECORDS", tmp_path / "new")
    assert recording.load(NAME) == {}
    small = run_of(ROWS)
    study = {"ci": small, "paper": run_of([], small.small, size="paper")}
    recording.save(NAME, study)
    assert recording.load(NAME) == study
    text = (tmp_path / "new" / f"{NAME}.json").read_text()
    assert sum('"spans"' in line for line in text.splitlines()) == 1
    assert json.loads(text)["ci"]["rows"][0]["us"] == 1.23457


def test_another_small_run_makes_the_large_one_stale():
    small = run_of(ROWS)
    study = {"ci": small, "paper": run_of([], small.small, size="paper")}
    assert recording.stale(NAME, study) == []
    study["ci"] = run_of([{**ROWS[0], "spans": 5}])
    assert recording.stale(NAME, study) == [
        f"{NAME} at size=paper was recorded by code whose small run printed other rows"
    ]
    assert recording.stale(NAME, {}) == [f"{NAME} was never recorded at size=ci"]


def test_other_settings_make_a_run_stale():
    other = dataclasses.replace(run_of(ROWS), settings="0" * 16)
    assert recording.stale(NAME, {"ci": other}) == [
        f"{NAME} at size=ci was recorded with other settings"
    ]
    assert recording.settings(NAME, "ci") != recording.settings(NAME, "paper")


@pytest.mark.parametrize(
    ("changed", "places"),
    [
        ({}, []),
        ({"us": 1.234567}, []),  # beyond the digits that are recorded
        ({"us": 1.2347}, ["'us'"]),
        ({"spans": 5}, ["'spans'"]),
        ({"network": "torus"}, ["'network'"]),
        ({"us": None}, ["'us'"]),
        ({"paper us": 2.0}, ["'paper us'"]),
        ({"new": 1}, ["'new'"]),
    ],
)
def test_differences_name_row_and_column(changed, places):
    found = recording.differences(NAME, run_of(ROWS), [{**ROWS[0], **changed}], ["so"])
    assert len(found) == len(places)
    assert all(place in text for place, text in zip(places, found, strict=True))


def test_rows_and_remarks_are_counted():
    assert "1 rows were recorded, 2 are printed" in recording.differences(
        NAME, run_of(ROWS), [*ROWS, *ROWS], ["so"]
    )
    assert "remarks" in recording.differences(NAME, run_of(ROWS), ROWS, ["not so"])[0]


def test_what_a_machine_measures_is_not_compared():
    name = "forestcoll-table-b-2"
    rows = [{"ranks": 128, "optimum s": 0.5, "total s": 1.0, "peak GB of the process": 1.0}]
    slower = [{"ranks": 128, "optimum s": 0.7, "total s": 2.0, "peak GB of the process": 2.0}]
    assert recording.differences(name, run_of(rows, name=name), slower, ["so"]) == []
    assert run_of(rows, name=name).small == run_of(slower, name=name).small
    slower[0]["ranks"] = 64
    assert recording.differences(name, run_of(rows, name=name), slower, ["so"])


def test_rows_whose_search_ends_by_the_clock_are_not_compared():
    name = "forestcoll-fig-4-11"
    rows = [{"algorithm": "ForestColl", "1 GiB": 2.0}, {"algorithm": "step MILP", "1 GiB": 1.0}]
    found_less = [rows[0], {**rows[1], "1 GiB": 0.5}]
    recorded = run_of(rows, name=name)
    assert recording.differences(name, recorded, found_less, ["so", "step MILP on 2: none"]) == []
    assert recording.differences(name, recorded, rows[:1], ["so"]) == []
    assert recorded.small == run_of(rows[:1], name=name).small
    assert recording.differences(name, recorded, [{**rows[0], "1 GiB": 1.0}], ["so"])


def test_rows_that_a_solver_finds_are_compared_by_its_version():
    name = "tacos-table-v"
    rows = [{"algorithm": "tacos", "us": 2.0}, {"algorithm": "taccl", "us": 1.0}]
    other = [rows[0], {**rows[1], "us": 0.5}]
    now = describe_machine()["highspy"]
    for version, number in ((now, 1), ("1.0", 0)):
        recorded = run_of(rows, name=name)
        recorded = dataclasses.replace(recorded, machine={**recorded.machine, "highspy": version})
        assert len(recording.differences(name, recorded, other, ["so"])) == number
        assert recording.differences(name, recorded, [{**rows[0], "us": 1.0}, rows[1]], ["so"])


def test_measured_columns_exist():
    """A pattern that matches no column any more would hide nothing, or the wrong thing."""
    for name, experiment in EXPERIMENTS.items():
        columns = {c for run in recording.load(name).values() for row in run.rows for c in row}
        kept = {c for row in recording.unmeasured(name, [dict.fromkeys(columns)]) for c in row}
        assert bool(columns - kept) == bool(experiment.measured), name
        assert kept or not columns
        texts = {
            v for run in recording.load(name).values() for row in run.rows for v in row.values()
        }
        listed = [p for p in experiment.searched if any(recording._matches(t, (p,)) for t in texts)]
        assert name == "forestcoll-fig-4-14" or listed == list(experiment.searched), name


@pytest.mark.parametrize(
    "page",
    [
        *(
            "collbench.md",
            "forestcoll.md",
            "tacos.md",
            "thousands.md",
            "when-it-pays.md",
            "who-wins.md",
        ),
        "workloads.md",
    ],
)
def test_figures_in_pages_are_what_is_recorded(page):
    """`python -m experiments.overview` writes them."""
    text = (page_tables.DOCS / page).read_text()
    assert "<!-- rows: " in text
    assert page_tables.generated(text) == text


def test_every_block_is_on_a_page():
    text = "".join(path.read_text() for path in page_tables.DOCS.glob("*.md"))
    assert sorted(re.findall(r"<!-- rows: ([\w-]+) -->", text)) == sorted(page_tables.BLOCKS)


def test_blocks_are_replaced_and_nothing_else(monkeypatch):
    monkeypatch.setattr(
        page_tables, "BLOCKS", {"a": lambda: page_tables.table(["x"], [[1.25], [None]])}
    )
    text = "before\n<!-- rows: a -->\nold\n<!-- end of rows -->\nafter\n"
    assert page_tables.generated(text) == text.replace("old\n", "| x |\n| --- |\n| 1.2 |\n|  |\n")
