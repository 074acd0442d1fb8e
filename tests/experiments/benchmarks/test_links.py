"""The benchmark of played links, between processes on CPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.benchmarks import links
from tests.execute.lowerings.player import is_compiled


@pytest.mark.parametrize("argv", [[], ["--gpu", "--cpu", "2"], ["--gpu", "--mpi"]])
def test_devices_are_those_of_gpus_or_of_cpus(argv, capsys):
    with pytest.raises(SystemExit):
        links.main(argv)
    assert "--gpu" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")
def test_processes_on_cpus_play_what_lax_gives(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    assert links.main(["--cpu", "2", "--sizes", "4096"]) == 0
    (file,) = tmp_path.rglob("links.json")
    rows = json.loads(file.read_text())["rows"]
    assert {row["collective"] for row in rows} == set(links.CALLS)
    assert all(row["equal"] for row in rows)
