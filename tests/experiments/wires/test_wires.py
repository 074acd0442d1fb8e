"""Predicted against measured on cables: what rows and summaries say, which schedules are tried."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
from fractions import Fraction
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.benchmarks import wires as benchmark
from experiments.config import configuration
from experiments.study import CheckError
from experiments.wires import measured, rank
from experiments.wires.measured import rows_of, summary
from experiments.wires.networks import NETWORKS, add_options
from jaxcoll import topologies
from jaxcoll.execute.choice.cheapest import Candidate
from tests.emulation.test_emulation import namespaces, needs_namespaces
from tests.experiments.runs import refuses_settings, small_run

MIB = 1 << 20
LINE = {
    "collective": "all_reduce",
    "size": MIB,
    "nbytes": MIB,
    "runs": "ring, 2 chunks",
    "predicted": {
        "ring, 2 chunks": 0.1, "tacos": 0.15, "jax.lax": 0.2, "rhd": 0.1234567, "default": 0.1,
    },
    "simulated": {"jax.lax": 0.2, "default": 0.08, "tacos": 0.15},
    "rounds": {"jax.lax": 0, "default": 14, "tacos": 20},
    "seconds": {"jax.lax": [0.25, 0.2, 0.24], "default": [0.11, 0.13], "tacos": [0.3]},
}  # fmt: skip

test_settings_are_refused = refuses_settings("wires")


def test_the_speed_of_a_cable_may_be_a_fraction_of_a_megabit(capsys):
    parser = argparse.ArgumentParser()
    add_options(parser, ())
    assert parser.parse_args([]).speed == 6_250_000
    assert parser.parse_args(["--mbits", "12.5"]).speed == Fraction(1_562_500)
    for bad in ("0", "-3", "fast", "1/0", "nan"):
        with pytest.raises(SystemExit):
            parser.parse_args([f"--mbits={bad}"])
        assert f"such as 50 or 12.5; got '{bad}'" in capsys.readouterr().err


def test_networks_have_the_ranks_and_speeds_of_their_names():
    made = {name: network(Fraction(10**6)) for name, network in NETWORKS.items()}
    for name, network in made.items():
        assert network.num_ranks == {"random 3-regular of 10": 10, "ring of 3": 3}.get(name, 8)
        assert not network.alpha.any()
        assert max(network.exact_bandwidth) == 10**6
    graphs = {name: network.to_networkx().to_undirected() for name, network in made.items()}
    wired = graphs["ring 0-2-1-3-4-6-5-7"]
    assert nx.is_isomorphic(wired, graphs["ring of 8"])
    around = [0, 2, 1, 3, 4, 6, 5, 7, 0]
    assert all(wired.has_edge(a, b) for a, b in itertools.pairwise(around))
    assert {degree for _, degree in graphs["random 3-regular of 10"].degree} == {3}
    hosts = made["two hosts of 4"]
    assert sorted(hosts.exact_bandwidth) == [250_000] * 2 + [10**6] * 16
    assert nx.shortest_path_length(graphs["two hosts of 4"], 3, 4) == 3
    assert sorted(made["torus 2x4, one cable at a fifth"].exact_bandwidth)[:3] == [
        200_000, 200_000, 10**6,
    ]  # fmt: skip
    assert made["torus 2x4, one cable cut"].num_links == made["torus 2x4"].num_links - 2


def test_rows_of_a_case():
    lax, default, tacos = rows_of("ring", topologies.ring(4, alpha=0, bandwidth=1e7), LINE)
    assert [row["program"] for row in (lax, default, tacos)] == ["jax.lax", "default", "tacos"]
    assert default["runs"] == "ring, 2 chunks"
    assert default["KiB"] == 1024
    assert default["predicted ms"] == pytest.approx(100)
    assert default["ms"] == pytest.approx(120)
    assert default["error %"] == pytest.approx(100 * (100 / 120 - 1))
    assert default["over lax"] == pytest.approx(120 / 240)
    assert default["others, predicted ms"] == "rhd 123.5"
    assert default["simulated ms"] == pytest.approx(80)
    assert default["over simulated"] == pytest.approx(120 / 80)
    assert (lax["rounds"], default["rounds"]) == (0, 14)
    assert (lax["calls"], default["calls"], tacos["calls"]) == (3, 2, 1)
    # Of eight halves of a circle each way: 2 (n - 1)/n of the buffer over two links.
    assert default["bound ms"] == pytest.approx(1e3 * 2 * 3 / 4 * MIB / 2e7)


timed = st.fixed_dictionaries(
    {
        "network": st.sampled_from(["a", "b"]),
        "collective": st.sampled_from(["all_reduce", "all_gather"]),
        "KiB": st.sampled_from([64.0, 1024.0, 4096.0]),
        "program": st.sampled_from(["default", "tacos"]),
        "runs": st.sampled_from(["jax.lax", "ring"]),
        "ms": st.floats(0.1, 100),
        "predicted ms": st.floats(0.1, 100),
        "error %": st.floats(-90, 300),
        "over simulated": st.floats(0.5, 5),
        "over lax": st.floats(0.1, 3),
    }
)


@given(st.lists(timed, min_size=1, max_size=30))
def test_the_summary_counts_every_row_once(rows):
    found = summary(rows)
    by_program = {row["program"]: row for row in found if row["network"] == "all"}
    errors = [
        abs(row["error %"]) for row in rows if row["KiB"] >= 1024 and row["runs"] != "jax.lax"
    ]
    large = by_program.get("schedules from 1 MiB")
    if errors:
        assert large is not None
        assert large["rows"] == len(errors)
        assert large["worst error %"] == max(errors)
        assert large["median error %"] == pytest.approx(statistics.median(errors))
        over = [
            row["over simulated"] for row in rows if row["KiB"] >= 1024 and row["runs"] != "jax.lax"
        ]
        assert large["median over simulated"] == pytest.approx(statistics.median(over))
        assert large["90 % over simulated"] <= max(over)
        share = sum(error <= large["90 % error %"] + 1e-9 for error in errors) / len(errors)
        assert share >= 0.9 - 1 / len(errors)
    else:
        assert large is None
    assert sum(row["rows"] for row in found if "worst error %" in row) == len(rows)
    defaults = [row for row in rows if row["program"] == "default"]
    for everywhere in (True, False):
        group = [
            row
            for row in found
            if "most over lax" in row and (row["network"] == "all") == everywhere
        ]
        assert sum(row["rows"] for row in group) == len(defaults)
        slow = sum(row["over lax"] > 1.03 for row in defaults)
        assert sum(row["above 1.03 over lax"] for row in group) == slow
        if defaults:
            ratios = [row["over lax"] for row in defaults]
            assert min(row["least over lax"] for row in group) == min(ratios)
            assert max(row["most over lax"] for row in group) == max(ratios)


def test_points_of_lax_stand_apart():
    rows = [{"network": "all", "rows": 3}] + [
        {"runs": runs, "predicted ms": 10.0**k, "ms": 2 * 10.0**k}
        for k, runs in enumerate(["jax.lax", "ring", "tacos"])
    ]
    (axes,) = measured.figure(rows).axes
    schedules, lax = (np.asarray(drawn.get_offsets()).tolist() for drawn in axes.collections)
    assert schedules == [[10, 20], [100, 200]]
    assert lax == [[1, 2]]
    (line,) = axes.lines
    assert np.array_equal(line.get_xdata(), line.get_ydata())


def explained(*names: str, chosen: int = 0) -> SimpleNamespace:
    """Candidates with ``names``, a second slower each."""
    found = tuple(Candidate(name, object(), links=1.0 + i) for i, name in enumerate(names))  # type: ignore[arg-type]
    return SimpleNamespace(candidates=found, chosen=found[chosen])


def test_the_best_of_other_synthesizers_are_tried_and_some_by_chance():
    given_ = explained("ring", "ring(bidirectional=False)", "tacos, 2 chunks", "jax.lax", "tacos",
                       "rhd", "bfb", "blink", "direct")  # fmt: skip
    plan = {"best": 1, "by_chance": 2, "longest": 8.0}
    best, *others = rank.chosen(given_, plan, "seed")  # type: ignore[arg-type]
    assert best.name == "tacos, 2 chunks"
    assert len(others) == 2
    assert {each.name for each in others} <= {"rhd", "bfb", "blink"}
    assert rank.chosen(given_, plan, "seed") == [best, *others]  # type: ignore[arg-type]
    drawn = {each.name for seed in "abcdefgh" for each in rank.chosen(given_, plan, seed)}  # type: ignore[arg-type]
    assert drawn == {"tacos, 2 chunks", "rhd", "bfb", "blink"}
    assert rank.chosen(given_, {**plan, "longest": 0.5}, "seed") == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "calls"), [(10.0, 2), (2.0, 3), (0.01, 7)])
def test_calls_fill_the_seconds(seconds, calls):
    plan = {"seconds": 6.5, "least_calls": 2, "most_calls": 7}
    assert rank.calls_in(plan, seconds) == calls


@needs_namespaces
def test_a_rank_that_fails_is_told(tmp_path, monkeypatch, capfd):
    program = tmp_path / "fails.py"
    program.write_text("import sys; sys.exit('no values')")
    monkeypatch.setattr(measured, "_PROGRAM", (str(program),))
    network, effort = topologies.ring(2, bandwidth=1e6), configuration("wires", "ci").effort
    before = namespaces()
    with pytest.raises(CheckError, match=r"0 of 1 cases of the pair ran.*status 1"):
        list(measured.measured("pair", network, ["all_reduce"], [64], effort, tmp_path / "a.jsonl"))
    assert "no values" in capfd.readouterr().out
    assert namespaces() == before


@needs_namespaces
@pytest.mark.slow
def test_values_are_those_of_lax_or_nothing_is_measured(tmp_path, capfd):
    """The program of a rank whose psum by schedules is off by one."""
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys\nimport jaxcoll as jc\nfrom experiments.wires import rank\npsum = jc.psum\n"
        "jc.psum = lambda *a, **more: psum(*a, **more) + ('schedule' in more)\n"
        "rank.main(*sys.argv[1:])\n"
    )
    effort = dataclasses.replace(configuration("wires", "ci").effort, by_chance=0)
    network = topologies.ring(2, alpha=0, bandwidth=4e6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "_PROGRAM", (str(program),))
        with pytest.raises(CheckError, match="0 of 1 cases"):
            list(measured.measured("pair", network, ["all_reduce"], [4096], effort, tmp_path / "a"))
    assert "differs from jax.lax" in capfd.readouterr().out


@needs_namespaces
@pytest.mark.slow
def test_the_small_study_leaves_rows_and_nothing_else():
    before = namespaces()
    run = small_run("wires")
    assert namespaces() == before
    config = configuration("wires", "ci")
    cases = [row for row in run.rows if row["program"] == "jax.lax"]
    assert len(cases) == len(config.networks) * len(config.collectives) * len(config.sizes)
    for row in run.rows:
        if "ms" in row:
            assert row["ms"] > 0
            assert row["calls"] >= 1
    assert any("congestion control" in remark for remark in run.content["remarks"])


@needs_namespaces
@pytest.mark.slow
def test_the_benchmark_writes_its_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    benchmark.main(["--networks", "ring of 3", "--collectives", "all_gather", "--sizes", "65536"])
    rows = json.loads((tmp_path / "results" / "bench" / "wires.json").read_text())["rows"]
    assert {row["program"] for row in rows} >= {"jax.lax", "default"}
    assert np.isfinite([row["ms"] for row in rows if row.get("ms")]).all()
