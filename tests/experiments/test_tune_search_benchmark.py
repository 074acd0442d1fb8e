"""The benchmark of searches runs on few landscapes and counts what it says it counts."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks import tune_search


@pytest.mark.slow
def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    options = "--landscapes 2 --searches printed fitted --families equations --whole 0"
    tune_search.main(options.split())
    rows = json.loads((tmp_path / "results/bench/tune_search.json").read_text())["rows"]
    printed, fitted = rows
    assert [row["number"] for row in rows] == [2, 2]
    assert fitted["median gap %"] < printed["median gap %"]
    assert fitted["most"] <= 75
    shown = capsys.readouterr().out
    assert "asked for a median of 1%" in shown
    assert shown.index("search printed, number 2") < shown.index("search fitted, number 2")
    assert shown.index("search fitted, number 2") < shown.index("tune_search")


@pytest.mark.slow
def test_processes_change_only_the_cpu_seconds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = []
    for processes in ("1", "2"):
        options = "--landscapes 2 --searches printed --families ramps coupled --whole 0"
        tune_search.main([*options.split(), "--processes", processes])
        rows = json.loads((tmp_path / "results/bench/tune_search.json").read_text())["rows"]
        found.append([{k: v for k, v in row.items() if "CPU" not in k} for row in rows])
    assert found[0] == found[1]
    assert [row["landscapes"].partition(",")[0] for row in found[0]] == ["ramps", "coupled"]


@pytest.mark.slow
def test_other_landscapes_have_a_row_per_search(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = ["--seeds", "1", "--families", "cliff", "needle", "--searches", "fitted", "random"]
    tune_search.tune_landscapes(options)
    rows = json.loads((tmp_path / "results/bench/tune_landscapes.json").read_text())["rows"]
    assert [(row["landscapes"], row["search"]) for row in rows] == [
        (family, search) for family in ("cliff", "needle") for search in ("fitted", "random")
    ]
    for row in rows:
        assert 0 < row["5th percentile of 40"] <= row["median of 40"] <= 1
        # A plateau has half the height of its needle.
        assert row["landscapes"] == "cliff" or row["median of 40"] > 0.45
