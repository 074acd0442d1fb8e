"""What ForestColl's figures and tables claim, of our own numbers, at the small size."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from experiments.config import build
from experiments.forestcoll import algorithms
from experiments.forestcoll.algorithms import ClusterConfig
from experiments.forestcoll.tables import PAPER_FIXED_K
from experiments.study import ConfigError
from experiments.workloads import Exchange, Layer, Workload, load_model
from jaxcoll.bounds.throughput import optimum
from jaxcoll.topologies import mi250
from tests.experiments.runs import refuses_settings, small_run

GIB = "1 GiB"


def rows_of(name: str) -> list[dict[str, Any]]:
    return small_run(name).rows


@pytest.mark.parametrize(
    "name",
    [
        "forestcoll-fig-4-10",
        *(pytest.param(f"forestcoll-fig-{n}", marks=pytest.mark.slow) for n in ("4-11", "4-12a")),
    ],
)
def test_forests_are_fastest_at_large_sizes(name):
    rows = rows_of(name)
    measured = [row for row in rows if "optimum GB/s" in row]
    panels = {(row["cluster"], row["collective"]) for row in measured}
    for panel in panels:
        # Switches that add are not bound by what bounds two phases.
        here = [
            row
            for row in measured
            if (row["cluster"], row["collective"]) == panel
            and (row["algorithm"], panel[1]) != ("ForestColl NVLS", "all_reduce")
        ]
        ours = next(row for row in here if row["algorithm"] == "ForestColl")
        # The phases of a vendor's tree overlap, and on four ranks of two hosts it is level.
        slack = {"vendor tree": 0.99, "ForestColl NVLS": 0.95}
        assert all(ours[GIB] >= slack.get(row["algorithm"], 1) * row[GIB] for row in here)
        assert all(row["% of optimum"] <= 100.0 + 1e-9 for row in here)
        assert ours["% of optimum"] > 85
    claims = [row for row in rows if "paper % faster" in row]
    assert bool(claims) == (name != "forestcoll-fig-4-12a")  # the paper's are of 16 hosts
    assert all(row["% faster"] is None or row["% faster"] > 0 for row in claims)


@pytest.mark.slow
def test_in_one_box_all_are_alike_and_across_boxes_forests_lead():
    rows = rows_of("forestcoll-fig-4-12b")
    speed, summed = (
        {(row["cluster"], row["algorithm"]): row[GIB] for row in rows if row["collective"] == kind}
        for kind in ("all_gather", "all_reduce")
    )
    assert speed["1 host", "ForestColl"] == pytest.approx(speed["1 host", "vendor ring"], rel=0.02)
    # MultiTree enters hosts it has not entered first, and comes closer the more there are.
    for hosts, lead in (("2 hosts", 1.3), ("4 hosts", 1.2)):
        assert speed[hosts, "ForestColl"] > 1.1 * speed[hosts, "vendor ring"]
        assert speed[hosts, "ForestColl"] > lead * speed[hosts, "MultiTree"]
        assert 0.95 < summed[hosts, "ForestColl NVLS"] / summed[hosts, "ForestColl"] < 1.2
    # One phase in place of two, where a switch adds; the ports between hosts add nothing.
    assert summed["1 host", "ForestColl NVLS"] > 1.3 * summed["1 host", "ForestColl"]


def test_table_4_1_is_the_papers():
    rows = rows_of("forestcoll-table-4-1")
    for row in rows:
        assert round(row["algbw GB/s"]) == row["paper GB/s"] == PAPER_FIXED_K[row["trees per rank"]]
        assert row["packed GB/s"] == row["algbw GB/s"]
    assert rows[-1]["% of optimum"] == pytest.approx(100.0)


@pytest.mark.slow
def test_only_forests_are_optimal_at_any_size():
    rows = rows_of("forestcoll-fig-4-14")
    for row in rows:
        if row["algorithm"] == "ForestColl":
            assert row["% of optimum"] == 100.0
        else:
            assert row["% of optimum"] < 100.0
        # "On the more complex MI250, ForestColl outperforms MultiTree by 50%+" (Sec. 4.6.5).
        if (row["fabric"], row["algorithm"]) == ("mi250", "MultiTree"):
            assert row["% of optimum"] < 100 / 1.5


def test_stages_add_up():
    rows = rows_of("forestcoll-table-b-2")
    assert [row["ranks"] for row in rows] == [128, 128]
    for row in rows:
        stages = [v for k, v in row.items() if k.endswith(" s") and k != "total s"]
        assert sum(stages) == pytest.approx(row["total s"])
        assert row["total s"] < 5


@pytest.mark.parametrize(
    "cluster",
    [
        ClusterConfig("a100", 2, 8),
        ClusterConfig("h100", 3, 4),
        ClusterConfig("mi250", 2, 16),
        ClusterConfig("mi250", 3, 8),
    ],
    ids=str,
)
def test_rings_follow_links_and_leave_boxes_by_different_ranks(cluster):
    topology, circles = cluster.build(), cluster.circles()
    assert len(circles) == cluster.ranks
    links = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    entered = []
    for circle in circles:
        assert sorted(circle) == list(range(topology.num_ranks))
        for u, v in zip(circle, (*circle[1:], circle[0]), strict=True):
            if u // cluster.ranks != v // cluster.ranks:
                entered.append(v)
            elif cluster.fabric == "mi250":
                assert (u, v) in links
    assert sorted(entered) == list(range(topology.num_ranks))


def test_clusters_are_the_papers():
    assert optimum(ClusterConfig("mi250", 2, 16).build()) == optimum(mi250(2))
    with pytest.raises(ConfigError, match="fabric"):
        ClusterConfig("gb200", 2, 8)
    with pytest.raises(ConfigError, match="hosts"):
        build(ClusterConfig, {"fabric": "a100", "hosts": 0, "ranks": 8})


# ---------------------------------------------------------------------- Fig. 4.13


def test_training_is_faster_where_communication_counts():
    rows = {(r["model"], r["algorithm"]): r for r in rows_of("forestcoll-fig-4-13")}
    for model in ("Gemma-2-27b", "Llama-2-70b"):
        ring, ours = rows[model, "vendor ring"], rows[model, "ForestColl"]
        assert ring["compute %"] == pytest.approx(ring["paper compute %"], abs=3)
        assert ours["reduction %"] == pytest.approx(ours["paper reduction %"], abs=2)
    small = rows["Llama-3-8b", "ForestColl"]
    assert 0 < small["reduction %"] < 5  # "reductions in iteration time of less than 5%"
    assert rows["Llama-3-8b", "vendor ring"]["compute %"] > 88


@pytest.mark.parametrize(
    ("table", "billions"),
    [
        ("gemma_2_2b", 2.61),
        ("gemma_2_27b", 27.2),
        ("llama_2_7b", 6.74),
        ("llama_2_70b", 69.0),
        ("llama_3_8b", 8.03),
        ("llama_3_119b", 119.0),
    ],
)
def test_models_have_the_published_parameters(table, billions):
    assert load_model(table, algorithms.MODELS).parameters / 1e9 == pytest.approx(
        billions, rel=0.003
    )


def layers(*sizes: int) -> Workload:
    """Layers of so many bytes, each of which computes 2 seconds forward and 4 backward."""
    one, two = Fraction(1), Fraction(2)
    made = (Layer("", two, one, 3 * one, None, Exchange("all", n) if n else None) for n in sizes)
    return Workload("", tuple(made))


def test_an_iteration_by_hand():
    times = {"all_gather": lambda n: Fraction(n), "reduce_scatter": lambda n: Fraction(2 * n)}
    work = layers(1, 3)
    assert algorithms.iteration(work, times, overlap=False) == 12 + 2 * (1 + 3) + 2 * (1 + 3)
    # Gathered at 1; forward to 3, while 1..4 gathers the next; forward 4..6, again gathered 4..7;
    # backward 7..11, gathered 7..8, summed 11..17; backward 11..15, summed 17..19.
    assert algorithms.iteration(work, times, overlap=True) == 19


@pytest.mark.parametrize("overlap", [True, False])
def test_iterations_of_one_kind_of_work(overlap):
    work = layers(5, 0, 7)
    free = dict.fromkeys(algorithms.GATHERED, lambda n: Fraction(0))
    assert algorithms.iteration(work, free, overlap) == work.compute == 18
    none = dict.fromkeys(("forward", "input_gradient", "weight_gradient"), Fraction(0))
    idle = Workload("", tuple(dataclasses.replace(layer, **none) for layer in work.layers))
    times = dict.fromkeys(algorithms.GATHERED, lambda n: Fraction(n))
    assert algorithms.iteration(idle, times, overlap) == 3 * 12
    total = algorithms.iteration(work, times, overlap)
    assert max(18, 36) <= total <= 18 + 36
    assert overlap or total == 18 + 36


def test_low_trees_need_fewer_pieces():
    rows = {(r["trees"], r["buffer"]): r for r in rows_of("forestcoll-pieces")}
    low, high = (rows[way, GIB] for way in ("guesses first", "exact way"))
    assert low["height"] <= high["height"]
    for row in rows.values():
        assert 0 < row["% with 1"] <= 100
        assert row["% with 16"] <= 100
    assert low["% with 16"] > 90 > low["% with 1"]
    assert all(low[f"% with {p}"] >= high[f"% with {p}"] for p in (1, 4, 16))
    assert rows["guesses first", "1 MiB"]["best pieces"] < low["best pieces"]


def test_switches_inside_boxes_are_told_from_those_between():
    assert ClusterConfig("h100", 1, 8).box_switches() == (8,)
    assert ClusterConfig("a100", 3, 4).box_switches() == (12, 13, 14)
    assert ClusterConfig("mi250", 2, 8).box_switches() == ()


test_settings_that_are_refused = refuses_settings("forestcoll-")
