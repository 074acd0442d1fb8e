"""Every study runs at its small size, through the command, and prints what is recorded of it."""

from __future__ import annotations

import csv
import io

import pytest

from experiments import records
from experiments.configure import EXPERIMENTS, configure
from experiments.errors import ConfigError
from experiments.experiment import publish
from tests.experiments.runs import small_run

# In one process, which makes the small run of every study once.
pytestmark = pytest.mark.xdist_group("studies")

STUDIES = [name for name in EXPERIMENTS if name != "quickstart"]
# Studies of plans depend on what JAX traces, which differs between its versions.
TRACED = ("tensorstate-",)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs(name):
    run = small_run(name)
    assert run.printed.strip()
    with io.StringIO(run.files["rows.csv"].decode(), newline="") as file:
        assert len(list(csv.DictReader(file))) == len(run.rows) > 0
    assert run.files["figure.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_prints_what_is_recorded(name):
    """`python -m experiments.overview NAME` records it again; look at the difference first."""
    recorded = records.load(name)[records.SMALL]
    jax = records.describe_machine()["jax"]
    if name.startswith(TRACED) and recorded.machine["jax"] != jax:
        pytest.skip(f"recorded with JAX {recorded.machine['jax']}, this is {jax}")
    content = small_run(name).content
    assert not records.differences(name, recorded, content["rows"], content["remarks"])


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_the_size_of_the_paper(name):
    _, config = configure([f"experiment={name}", "size=paper"])
    assert config.size == "paper"
    with pytest.raises(ConfigError, match="unknown size 'huge'; known: ci, paper"):
        configure([f"experiment={name}", "size=huge"])


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
