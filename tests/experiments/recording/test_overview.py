"""The page of all studies: generated from their settings and from the rows recorded of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import overview, page_tables, recording, study
from experiments.config import EXPERIMENTS
from experiments.tacos.measure import ATTEMPTS
from jaxcoll.synth import Tacos

RUN = recording.Run("command", "abc", "2026-11-22", {}, "", "", "Fig. 0", (), ())


def test_every_study_says_what_it_shows():
    names = overview.studies()
    assert [name for name in EXPERIMENTS if name != "quickstart"] == names
    for name in names:
        assert overview.shows(name)
        assert "Setting" not in overview.shows(name)
    assert overview.shows("tacos-fig-14") == "An all-gather of TACOS on a 3x3 mesh, span by span"


def test_numbers_stand_beside_the_papers():
    rows = [
        {"network": "ring", "us": 1.0, "% of ideal": 99.0},
        {"network": "all", "algorithm": "tacos", "% of ideal": 97.25, "paper % of ideal": 97},
        {"trees": 2, "algbw GB/s": 341.26, "paper GB/s": 341},
        {"model": "mean of all", "quantity": "gain", "ours": 1.5, "paper": 1.25},
        {"network": "mesh", "% of ideal": None, "paper % of ideal": 50.0},
        {"network": "taccl", "paper % of ideal": 60.0},
        {"network": "mesh", "% of ideal": 50.0, "paper % of ideal": None},
    ]
    assert list(overview.pairs(rows)) == [
        "mean of all, gain: 1.5 (1.25)",
        "tacos, % of ideal: 97.25 (97)",
        "GB/s: 341.3 (341)",
        "mesh, % of ideal: none (50)",
        "taccl, % of ideal: none (60)",
    ]


def test_every_number_of_a_paper_is_listed():
    rows = [{"n": str(n), "s": 1.0, "paper s": 2.0} for n in range(30)]
    line = overview.line("tacos-fig-14", "paper", dataclasses.replace(RUN, rows=rows))
    assert line.count("s: 1 (2)") == 30
    assert line.endswith("| paper, abc |")


def test_remarks_on_what_differs():
    remarks = ["Link model astra.", "One thing.", "rhd is not defined on b: 6", "Two."]
    run = dataclasses.replace(RUN, remarks=remarks)
    notes, *told = overview.sentences("tacos-fig-14", "paper", run)
    assert notes.startswith("Numbers on links are chunks.")
    assert told == ["One thing.", "Two."]


def blank(path, figure):
    """No picture: those of studies are drawn by the studies' own tests."""
    path.write_bytes(b"")


def test_the_page_is_made_of_records(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(recording, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(overview, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page_tables, "DOCS", tmp_path)
    monkeypatch.setattr(study, "write_figure", blank)
    assert overview.main(["--ci", "tacos-fig-10"]) == 0
    assert overview.main(["tacos-fig-14"]) == 0
    text = (tmp_path / "page.md").read_text()
    few, mesh = (line for line in text.splitlines() if line.startswith("| `tacos"))
    commit = recording.commit()
    assert few.endswith(f"| fully connected, spans: 1 (1) | ci, {commit} |")
    assert mesh.endswith(f"| 2D mesh, spans: 4 (4) | paper, {commit} |")
    assert "**tacos-fig-14**" in text
    assert "wrote" in capsys.readouterr().out
    # Rows that are as recorded stay: another run at size=ci leaves that of size=paper current.
    path = tmp_path / "records" / "tacos-fig-14.json"
    before = path.read_bytes()
    assert overview.main(["--ci", "tacos-fig-14"]) == 0
    assert path.read_bytes() == before
    # Other rows are recorded, and so is the run at size=paper by the same code.
    content = json.loads(before)
    content["ci"]["rows"][0]["spans"] = 5
    path.write_text(json.dumps(content))
    assert recording.stale("tacos-fig-14", recording.load("tacos-fig-14"))
    monkeypatch.setattr(overview, "studies", lambda: ["tacos-fig-10", "tacos-fig-14"])
    assert overview.main(["--stale"]) == 0
    assert path.read_bytes() == before
    assert overview.main(["--ci", "--all"]) == 0
    assert path.read_bytes() == before


def test_studies_on_devices_have_a_process_per_size(monkeypatch, tmp_path):
    """JAX cannot change the number of its devices once it has started."""
    sizes = []

    def run(command):
        _, size, folder = (entry.partition("=")[2] for entry in command[-3:])
        sizes.append(size)
        (Path(folder) / "rows.json").write_text('{"rows": [{"a": 1}], "remarks": [], "title": "t"}')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(recording, "RECORDS", tmp_path)
    monkeypatch.setattr(overview.subprocess, "run", run)
    monkeypatch.setattr(recording, "commit", lambda: "unknown")
    overview.record("tensorstate-quickstart", paper=True)
    assert sizes == ["ci", "paper"]


def test_figures_of_pages_are_those_of_the_recorded_run(monkeypatch, tmp_path):
    monkeypatch.setattr(recording, "RECORDS", tmp_path)
    monkeypatch.setattr(page_tables, "DOCS", tmp_path)
    (tmp_path / "images").mkdir()
    pictured = dataclasses.replace(EXPERIMENTS["tacos-fig-14"], pictured=True)
    monkeypatch.setitem(EXPERIMENTS, "tacos-fig-14", pictured)
    monkeypatch.setattr(study, "write_figure", blank)
    overview.record("tacos-fig-14", paper=False)
    assert not list((tmp_path / "images").iterdir())
    overview.record("tacos-fig-14", paper=True)
    overview.record("tacos-fig-10", paper=True)
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["tacos-fig-14.png"]


def test_the_head_says_which_tacos_is_meant():
    assert Tacos().attempts is None  # then as many as the page says, or more
    head = " ".join(overview.page([]).split())
    assert f"{Tacos().rule} and the best of {ATTEMPTS} attempts" in head


@pytest.mark.parametrize("arguments", [["tacos-fig-99"], ["quickstart"]])
def test_an_unknown_study_is_refused(arguments, capsys):
    assert overview.main(arguments) == 1
    assert "no study" in capsys.readouterr().err
