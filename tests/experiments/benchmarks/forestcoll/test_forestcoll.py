"""The ForestColl benchmark: its rows, and that the peer's figures are for networks it shows."""

from __future__ import annotations

from experiments.benchmarks.forestcoll import degraded_networks, forestcoll
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
    for k, paper in forestcoll.PAPER_FIXED_K.items():
        row = forestcoll.fixed_row(mi250(2), k, paper)
        assert round(row["algbw GB/s"]) == paper


def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forestcoll, "SMALL", [lambda: torus(3, 3)])
    monkeypatch.setattr(forestcoll, "LARGE", [(lambda: dgx_a100(3), None)])
    monkeypatch.setattr(forestcoll, "mi250", lambda hosts: dgx_a100(hosts))
    monkeypatch.setattr(forestcoll, "PAPER_FIXED_K", {1: 320})
    forestcoll.main(["--large"])
    assert "elsewhere" in capsys.readouterr().out
    for name in ("forestcoll", "forestcoll-table-4-1", "forestcoll-pieces", "forestcoll-large"):
        assert (tmp_path / f"results/bench/{name}.json").is_file()


def test_networks_without_a_grid_are_measured(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = {"two rings of 3": lambda: degraded_networks.two_rings(3)}
    monkeypatch.setattr(forestcoll, "NETWORKS", small)
    forestcoll.main(["--scale", "rings"])
    assert (tmp_path / "results/bench/forestcoll-scale.json").is_file()
    row = forestcoll.measure_scale("star", degraded_networks.star_of_rings(3, 4))
    assert row["optimal"]


def test_at_least_25_networks_are_named_and_made():
    assert len(degraded_networks.NETWORKS) >= 25
    made = degraded_networks.NETWORKS["A100 x64 with a dead NIC"]()
    assert (made.num_ranks, made.num_links) == (512, 4 * 512 - 2)
