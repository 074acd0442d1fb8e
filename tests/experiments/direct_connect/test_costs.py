"""What Figs. 3.10 and A.7 claim, of our own numbers."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from experiments.config import build
from experiments.direct_connect.costs import Network, check, kautz_costs, synthesized
from experiments.study import CheckError, ConfigError
from jaxcoll.bounds.moore import Cost
from jaxcoll.collective import Collective
from jaxcoll.synth import Sccl
from jaxcoll.topologies import hypercube
from tests.experiments.runs import small_run


def rows_of(name: str) -> list[dict[str, Any]]:
    return small_run(f"direct-connect-{name}").rows


@pytest.mark.slow
def test_breadth_first_is_optimal_in_both_and_searches_are_never_better():
    rows = rows_of("fig-3-10")
    for row in rows:
        assert row["T_L"] >= row["least T_L"]
        assert row["T_B"] >= row["least T_B"]
        if row["synthesizer"] == "BFB":
            assert row["optimal in both"]
        if row["synthesizer"] == "SCCL":
            assert row["T_L"] == row["least T_L"]
    # Of 7 shards that 3 links bring, 3 chunks per shard make 7 rounds: other numbers waste some.
    found = [r["T_B"] for r in rows if (r["network"], r["synthesizer"]) == ("hypercube 8", "SCCL")]
    assert found == [9 / 8, 15 / 16, 7 / 8, 15 / 16]


def test_kautz_digraphs_are_within_twice_the_least_and_one_step():
    rows = rows_of("fig-a-7")
    assert rows[0]["ours"] == rows[0]["paper"] == 2
    degrees = [row for row in rows if "degree" in row]
    assert [row["degree"] for row in degrees] == [2, 4, 8, 16]
    for row in degrees:
        assert row["most T_B/T_B*"] <= 2
        assert row["most T_L - T_L*"] <= 1
        if row["degree"] > 2:
            assert row["at N"] == row["degree"] * (row["degree"] + 2) // 2
    means = [row["mean T_B/T_B*"] for row in degrees]
    assert means == sorted(means, reverse=True)


def test_packaged_costs_are_checked():
    costs = kautz_costs(2, 9)
    assert list(costs) == list(range(3, 10))
    assert check(costs, 2, 3) == 3
    with pytest.raises(CheckError, match=r"Pi\(2,3\) costs .*; packaged is"):
        check({**costs, 3: Cost(1, Fraction(1, 3))}, 2, 3)
    with pytest.raises(ConfigError, match=r"Pi\(3,4\) is not packaged"):
        kautz_costs(3, 9)


def test_a_search_that_time_stops_is_an_error(monkeypatch):
    network = hypercube(2)
    schedule = Sccl().synthesize(network, Collective("all_gather", 4))
    stopped = dataclasses.replace(schedule.provenance, certificate={"gap": 0.5})
    late = dataclasses.replace(schedule, provenance=stopped)
    monkeypatch.setattr(Sccl, "synthesize", lambda *_: late)
    with pytest.raises(CheckError, match="ran out of time"):
        synthesized(Sccl(), network, 1)


@pytest.mark.parametrize(
    ("family", "ranks", "chunks", "message"),
    [
        ("ring", 4, {}, "networks.family"),
        ("torus", 8, {}, "a square"),
        ("hypercube", 12, {}, "a power of two"),
        ("torus", 9, {"NCCL": 1}, "networks.chunks"),
        ("torus", 9, {"SCCL": 0}, "at least 1"),
    ],
)
def test_bad_networks_are_refused(family, ranks, chunks, message):
    with pytest.raises(ConfigError, match=message):
        build(Network, {"family": family, "ranks": ranks, "chunks": chunks}, "networks")
