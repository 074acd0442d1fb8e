"""Every study runs at its small size, through the command, and writes what it prints."""

from __future__ import annotations

import csv
import json

import pytest

from experiments import __main__ as command
from experiments.configure import EXPERIMENTS, configure
from experiments.errors import ConfigError
from experiments.experiment import publish

STUDIES = [name for name in EXPERIMENTS if name != "quickstart"]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs(name, tmp_path, capsys):
    assert command.main([f"experiment={name}", "size=ci", f"results={tmp_path}"]) == 0
    assert capsys.readouterr().out.strip()
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows) > 0
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_the_size_of_the_paper(name):
    _, config = configure([f"experiment={name}", "size=paper"])
    assert config.size == "paper"
    with pytest.raises(ConfigError, match="unknown size 'huge'; known: ci, paper"):
        configure([f"experiment={name}", "size=huge"])


def test_rows_are_published(tmp_path, capsys):
    rows = [{"network": "ring", "time": 1.5}, {"network": "mesh", "paper": None}]
    publish("Fig. 0", rows, tmp_path / "new", notes=["why"])
    assert "Fig. 0" in (printed := capsys.readouterr().out)
    assert "why" in printed
    text = (tmp_path / "new" / "rows.csv").read_text()
    assert text == "network,time,paper\nring,1.5,\nmesh,,\n"
    assert not (tmp_path / "new" / "figure.png").exists()
