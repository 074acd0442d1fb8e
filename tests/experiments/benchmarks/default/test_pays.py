"""The benchmark of where schedules pay: the rows of ``jaxcoll explain``, kept for the page."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks.default import pays


@pytest.mark.slow
def test_rows_are_those_of_the_command_and_become_the_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(pays.page_tables, "PAYS", tmp_path / "pays.json")
    monkeypatch.setattr(pays.page_tables, "DOCS", tmp_path)
    monkeypatch.setattr(pays, "CASES", {"a ring": ("ring:4", "--backend", "tpu")})
    monkeypatch.setattr("experiments.timing.RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- rows: pays -->\n<!-- end of rows -->\n")
    pays.main(["--cases", "a ring", "--collectives", "all_reduce", "--record"])
    rows = json.loads((tmp_path / "pays.json").read_text())["rows"]
    assert [(row["case"], row["backend"], row["nbytes"]) for row in rows] == [
        ("a ring", "tpu", 2**20), ("a ring", "tpu", 2**26),
    ]  # fmt: skip
    assert all(row["bound_seconds"] <= row["exported_seconds"] for row in rows)
    lines = [line for line in page.read_text().splitlines() if line.startswith("| a ring")]
    assert len(lines) == 2
    assert lines[0].startswith("| a ring | all_reduce | 1 MiB | ")
