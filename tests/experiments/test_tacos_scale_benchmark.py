"""The benchmark of TACOS at scale: its rows, at sizes that take no time."""

from __future__ import annotations

from experiments.benchmarks import tacos_scale
from experiments.benchmarks.__main__ import main


def test_a_row_of_a_mesh(tmp_path):
    row = tacos_scale.measure_mesh((6, 6), tmp_path, threads=2, seed=0)
    assert (row["ranks"], row["steps"], row["bound"]) == (36, 18, 18)
    assert row["seconds"] > 0
    assert 0 < row["disk GB"] < 1e-4


def test_growth_of_processor_time():
    rows = [{"ranks": 10, "processor seconds": 2.0}, {"ranks": 1000, "processor seconds": 2e4}]
    assert abs(tacos_scale.growth(rows) - 2.0) < 1e-12


def test_it_runs_by_either_name(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--sides", "4", "4", "--sides", "5", "5", "--repeat", "1"]
    assert main(["tacos-scale", *arguments]) == 0
    assert "to the power" in capsys.readouterr().out
    assert (tmp_path / "results/bench/tacos-scale.json").is_file()
    assert (tmp_path / "results/bench/tacos-rfs.json").is_file()
