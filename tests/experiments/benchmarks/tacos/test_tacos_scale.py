"""The benchmark of TACOS at scale: its rows, at sizes that take no time."""

from __future__ import annotations

import pytest

from experiments.benchmarks.__main__ import main


@pytest.mark.slow
def test_it_runs_by_either_name(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--sides", "4", "4", "--sides", "5", "5", "--repeat", "1"]
    assert main(["tacos-scale", *arguments]) == 0
    assert "to the power" in capsys.readouterr().out
    assert (tmp_path / "results/bench/tacos-scale.json").is_file()
    assert (tmp_path / "results/bench/tacos-rfs.json").is_file()
