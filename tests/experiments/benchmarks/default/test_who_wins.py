"""The map of who wins: rows are the verdicts of contests, kept where a run was stopped."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks.default import who_wins
from jaxcoll import contest
from jaxcoll.measured import MACHINES


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(who_wins, "CASES", {"mi300x-host": ("direct",)})
    monkeypatch.setattr(who_wins, "SIZES", (2**26,))
    monkeypatch.setattr(who_wins, "COLLECTIVES", ("all_gather", "broadcast"))
    monkeypatch.setattr(who_wins.page_tables, "WHO_WINS", tmp_path / "who_wins.json")
    monkeypatch.setattr(who_wins.page_tables, "DOCS", tmp_path)
    return tmp_path


def test_rows_are_verdicts_and_stand_on_the_page(small):
    (page := small / "page.md").write_text("<!-- rows: who-wins -->\n<!-- end of rows -->\n")
    who_wins.main(["--record"])
    (row,) = json.loads((small / "who_wins.json").read_text())["rows"]
    held = contest.contest("mi300x-host", "all_gather", [2**26])
    (verdict,) = held.verdicts(held.entries(["direct"]))
    assert (row["answer"], row["seconds"]) == (verdict.answer.value, verdict.seconds)
    assert verdict.own is not None
    assert row["own_seconds"] == verdict.own.seconds
    cells = f"| mi300x-host | all_gather | 64 MiB | no | {1e3 * row['own_seconds']:.3g} |"
    assert cells in page.read_text()


def test_a_run_that_was_stopped_goes_on(small, monkeypatch):
    who_wins.main([])
    monkeypatch.setattr(who_wins, "contest", None)
    who_wins.main(["--go-on"])
    with pytest.raises(TypeError):
        who_wins.main([])


def test_machines_that_are_recorded_alone_leave_the_others_as_they_are(small, monkeypatch):
    other = {"machine": "h100-host", "collective": "all_gather"}
    old = {"machine": "mi300x-host", "collective": "all_to_all"}
    gone = {"machine": "a machine of before", "collective": "all_to_all"}
    monkeypatch.setattr(who_wins, "CASES", {"mi300x-host": ("direct",), "h100-host": None})
    (small / "who_wins.json").write_text(json.dumps({"rows": [other, gone, old]}))
    monkeypatch.setattr(who_wins.page_tables, "write", lambda: None)
    who_wins.main(["--record", "--machines", "mi300x-host"])
    first, second = json.loads((small / "who_wins.json").read_text())["rows"]
    assert (first["machine"], first["collective"]) == ("mi300x-host", "all_gather")
    assert second == other


def test_every_machine_is_on_the_map():
    assert set(who_wins.CASES) == set(MACHINES)
