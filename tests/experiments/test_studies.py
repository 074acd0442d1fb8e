"""Every study runs at its small size, through the command, and prints what is recorded of it."""

from __future__ import annotations

import csv
import io

import pytest

from experiments import recording
from experiments.config import EXPERIMENTS, configuration, configure
from experiments.study import ConfigError, Rows, publish
from tests.experiments.runs import marked, small_run

STUDIES = [name for name in EXPERIMENTS if name != "quickstart"]


@pytest.mark.parametrize("name", marked(STUDIES))
@pytest.mark.slow_members("tacos-fig-20", "multitree-fig-9", "tacos-fig-2a", "tacos-fig-21")
def test_a_study_runs_and_prints_what_is_recorded(name):
    """`python -m experiments.overview NAME` records it again; look at the difference first."""
    run = small_run(name)
    assert run.printed.strip()
    with io.StringIO(run.files["rows.csv"].decode(), newline="") as file:
        assert len(list(csv.DictReader(file))) == len(run.rows) > 0
    assert run.files["figure.png"].startswith(b"\x89PNG")
    recorded = recording.load(name)[recording.SMALL]
    assert not recording.differences(name, recorded, run.content["rows"], run.content["remarks"])


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_the_size_of_the_paper(name):
    assert configuration(name, "paper").size == "paper"  # which the records have asked for too
    with pytest.raises(ConfigError, match="unknown size 'huge'; known: ci, paper"):
        configure([f"experiment={name}", "size=huge"])


def test_a_row_is_printed_when_it_is_made(capsys):
    def made():
        yield {"network": "ring", "time": 1.23456}
        assert capsys.readouterr().out == "network ring, time 1.235\n"
        yield {"network": "mesh", "time": None}

    rows = Rows(made())
    rows += ({"n": n} for n in range(2))
    rows.append({"n": 2})
    assert capsys.readouterr().out == "network mesh, time \nn 0\nn 1\nn 2\n"
    assert [row.get("n") for row in rows] == [None, None, 0, 1, 2]


def test_rows_are_published(tmp_path, capsys):
    rows = [{"network": "ring", "time": 1.5}, {"network": "mesh", "paper": None}]
    notes = ["It took {time | network=ring | .1f} s.", "Not so on {time | network=star}."]
    publish("Fig. 0", rows, tmp_path / "new", notes=notes, remarks=["why {it} did"])
    assert "Fig. 0" in (printed := capsys.readouterr().out)
    assert "It took 1.5 s." in printed
    assert "why {it} did" in printed
    assert "Not so" not in printed
    text = (tmp_path / "new" / "rows.csv").read_text()
    assert text == "network,time,paper\nring,1.5,\nmesh,,\n"
    assert not (tmp_path / "new" / "figure.png").exists()
