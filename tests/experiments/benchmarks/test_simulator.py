"""The simulator's benchmark runs small, and its published cases agree within one percent."""

from __future__ import annotations

import pytest

from experiments.benchmarks import simulator


@pytest.mark.parametrize("case", simulator.PUBLISHED, ids=lambda c: f"{c[0]} {c[1]}")
def test_published_times_are_reproduced(case):
    assert simulator.published_row(*case)["ours / peer"] == pytest.approx(1, rel=0.01)


def test_speeds_are_measured():
    for name, schedule in simulator.traffic(16):
        row = simulator.speed_row(name, schedule, 1)
        assert row["hops"] >= row["messages"] > 0
        assert row["Mhops/s"] > 0
