"""The TACOS benchmark: its rows, and that the peer's figures are for networks it shows."""

from __future__ import annotations

from experiments.benchmarks import tacos
from jaxcoll.synth.tacos import Tacos
from jaxcoll.topologies import torus


def test_a_row_holds_ours_and_the_peers():
    row = tacos.measure(torus(4, 4), Tacos(), seed=0, repeat=1)
    assert (row["ranks"], row["bound"], row["steps"]) == (16, 4, 4)
    assert row["peer's steps"] == 5
    assert 0 < row["seconds"] < 10


def test_the_peers_figures_are_of_networks_that_are_shown():
    shown = {family(*size).name for family, sizes in tacos.SHOWN for size in sizes}
    assert shown >= {*tacos.PEER_STEPS, *tacos.PEER_SECONDS}


def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tacos, "SHOWN", [(torus, [(4, 4), (8, 8)])])
    tacos.main(["--repeat", "1"])
    assert "2 of 2 networks" in capsys.readouterr().out
    assert (tmp_path / "results/bench/tacos.json").is_file()
