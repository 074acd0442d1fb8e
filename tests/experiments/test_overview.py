"""The page of all studies: made of their settings and of the rows they published."""

from __future__ import annotations

import re

from experiments import overview
from experiments.configure import EXPERIMENTS


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
        {"network": "mesh", "% of ideal": 50.0, "paper % of ideal": None},
    ]
    assert list(overview.pairs(rows)) == [
        "mean of all, gain: 1.5 (1.25)",
        "tacos, % of ideal: 97.25 (97)",
        "GB/s: 341.3 (341)",
    ]


def test_many_numbers_are_counted():
    rows = [{"n": str(n), "s": 1.0, "paper s": 2.0} for n in range(overview.MOST + 3)]
    line = overview.line("tacos-fig-14", "paper", {"rows": rows})
    assert line.count("s: 1 (2)") == overview.MOST
    assert "and 3 more" in line
    assert line.endswith("| paper |")


def test_notes_on_what_differs():
    notes = ["Link model astra.", "One thing", "and more.", "rhd is not defined on b: 6", "Two."]
    assert overview.sentences(notes) == ["One thing and more.", "Two."]


def test_the_page_is_made_of_results(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(overview, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(overview, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(overview, "studies", lambda: ["tacos-fig-10", "tacos-fig-14"])
    assert overview.main(["tacos-fig-14"]) == 0
    text = (tmp_path / "page.md").read_text()
    few, mesh = (line for line in text.splitlines() if line.startswith("| `tacos"))
    assert few.endswith("| fully connected, spans: 1 (1) | ci |")
    assert mesh.endswith("| 2D mesh, spans: 4 (4) | paper |")
    assert "**tacos-fig-14**" in text
    assert "wrote" in capsys.readouterr().out


def test_an_unknown_study_is_refused(capsys):
    assert overview.main(["tacos-fig-99"]) == 1
    assert "no experiment" in capsys.readouterr().err


def test_the_page_lists_no_study_that_is_gone():
    """`python -m experiments.overview` makes the page anew."""
    listed = re.findall(r"^\| `([\w-]+)` \|", overview.PAGE.read_text(), re.MULTILINE)
    assert len(listed) > 20
    assert set(listed) <= set(EXPERIMENTS)
