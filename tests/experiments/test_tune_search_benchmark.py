"""The benchmark of searches runs on few landscapes and counts what it says it counts."""

from __future__ import annotations

import json

from experiments.benchmarks import tune_search


def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    options = "--landscapes 2 --searches printed fitted --families equations --whole 0"
    tune_search.main(options.split())
    rows = json.loads((tmp_path / "results/bench/tune_search.json").read_text())["rows"]
    printed, fitted = rows
    assert [row["number"] for row in rows] == [2, 2]
    assert fitted["median gap %"] < printed["median gap %"]
    assert fitted["most"] <= 75
    assert "asked for a median of 1%" in capsys.readouterr().out
