"""The ForestColl benchmark: its rows, and that the peer's figures are for networks it shows."""

from __future__ import annotations

import json

import pytest

from experiments import page_tables
from experiments.benchmarks import forestcoll
from experiments.forestcoll import tables
from jaxcoll.topologies import dgx_a100, mi250, torus


def test_a_row_holds_ours_and_the_peers():
    row = forestcoll.measure(dgx_a100(2))
    assert (row["1/x* (s/GB)"], row["k"], row["as the peer's"]) == ("3/65", 13, True)
    assert row["height"] == 2
    row = forestcoll.measure_large(torus(4, 4, bandwidth=1e9), 10.0)
    assert (row["1/x* (s/GB)"], row["optimal"], row["height"]) == ("15/4", True, 4)


def test_the_peers_figures_are_of_networks_that_are_shown():
    shown = {make().name for make in forestcoll.SMALL}
    assert shown >= {*forestcoll.PEER_OPTIMA, *forestcoll.PEER_SECONDS}


def test_fixed_numbers_of_trees_are_the_papers():
    for k, paper in tables.PAPER_FIXED_K.items():
        row = tables.fixed_row(mi250(2), k, paper)
        assert round(row["algbw GB/s"]) == paper


def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forestcoll, "SMALL", [lambda: torus(3, 3)])
    monkeypatch.setattr(forestcoll, "LARGE", [(lambda: dgx_a100(3), None)])
    forestcoll.main(["--large"])
    assert "elsewhere" in capsys.readouterr().out
    for name in ("forestcoll", "forestcoll-large"):
        assert (tmp_path / f"results/bench/{name}.json").is_file()


def test_networks_without_a_grid_are_measured_and_recorded(monkeypatch, tmp_path):
    """A network that is measured again replaces its row; others stay, in order."""
    monkeypatch.chdir(tmp_path)
    names = ("two rings of 3", "two rings of 4")
    small = {n: lambda n=n: forestcoll.two_rings(int(n[-1])) for n in names}
    monkeypatch.setattr(forestcoll, "NETWORKS", small)
    monkeypatch.setattr(page_tables, "SCALE", tmp_path / "scale.json")
    monkeypatch.setattr(page_tables, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- rows: forests-at-scale -->\n<!-- end of rows -->\n")
    forestcoll.record_scale([forestcoll.measure_scale(n, small[n]()) for n in reversed(names)])
    before = json.loads(page_tables.SCALE.read_text())
    forestcoll.main(["--scale", "of 3", "--record"])
    assert (tmp_path / "results/bench/forestcoll-scale.json").is_file()
    record = json.loads(page_tables.SCALE.read_text())
    assert list(record) == list(before) == list(names)
    assert record[names[1]] == before[names[1]]
    assert [row["ranks"] for row in record.values()] == [6, 8]
    assert all(row["optimal"] and row["commit"] for row in record.values())
    lines = page.read_text().splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[3:-1]] == list(names)
    row = forestcoll.measure_scale("star", forestcoll.star_of_rings(3, 4))
    assert row["optimal"]


def test_what_is_not_measured_at_scale_is_not_recorded(capsys):
    with pytest.raises(SystemExit):
        forestcoll.main(["--record"])
    assert "give both" in capsys.readouterr().err


def test_at_least_25_networks_are_named_and_made():
    assert len(forestcoll.NETWORKS) >= 25
    made = forestcoll.NETWORKS["A100 x64 with a dead NIC"]()
    assert (made.num_ranks, made.num_links) == (512, 4 * 512 - 2)
