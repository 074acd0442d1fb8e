"""The simulator's benchmark runs small, and its published cases agree within one percent."""

from __future__ import annotations

import pytest

from experiments.benchmarks import simulation


@pytest.mark.parametrize("case", simulation.PUBLISHED, ids=lambda c: f"{c[0]} {c[1]}")
def test_published_times_are_reproduced(case):
    assert simulation.published_row(*case)["ours / peer"] == pytest.approx(1, rel=0.01)


def test_speeds_are_measured():
    for name, schedule in simulation.traffic(16):
        row = simulation.speed_row(name, schedule, 1)
        assert row["hops"] >= row["messages"] > 0
        assert row["Mhops/s"] > 0
