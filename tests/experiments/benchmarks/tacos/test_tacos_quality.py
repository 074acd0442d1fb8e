"""The benchmark of TACOS's quality: its rows, at sizes that take no time."""

from __future__ import annotations

from experiments.benchmarks import tacos
from jaxcoll.topologies import torus


def test_a_row_of_unequal_links():
    row = tacos.measure_unequal((16, 73), 4, seeds=2, attempts=4)
    assert row["bound us"] < row["best us"] <= row["ours us"] < row["peer us"] == 19539
    assert row["ours / peer"] == row["ours us"] / 19539


def test_a_row_of_small_data():
    row = tacos.measure_small(torus(3, 3), 0.5, seed=0)
    assert row["ideal / ours, astra"] >= 0.95
    assert row["ideal / ours, tacos"] >= 0.95
    assert row["peer's"] == 0.5


def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tacos, "PEER_MICROSECONDS", {(16, 73): {4: 19539}})
    monkeypatch.setattr(tacos, "SMALL", ((torus(2, 2), None),))
    tacos.tacos_quality(["--seeds", "1", "--attempts", "1"])
    assert "on 0 of 1 meshes" in capsys.readouterr().out
    assert (tmp_path / "results/bench/tacos-unequal.json").is_file()
    assert (tmp_path / "results/bench/tacos-small.json").is_file()
