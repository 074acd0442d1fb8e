"""The fluid limit of a collective: closed forms, and never below the bound of as many bytes."""

from __future__ import annotations

import pytest

from experiments.benchmarks import simulation
from jaxcoll.bounds import bound
from jaxcoll.topologies import ring, torus


@pytest.mark.parametrize("horizon", [3, 4, 6])
def test_a_pair_gathers_what_its_link_carries_after_the_latency(horizon):
    topology = ring(2, alpha=simulation.ALPHA, bandwidth=simulation.BANDWIDTH)
    carried = (horizon - 2) / 2 * simulation.ALPHA * simulation.BANDWIDTH
    links = len(topology.src) // 2  # one way
    assert simulation.most_bytes(topology, "all_gather", 2, horizon) == pytest.approx(
        2 * links * carried
    )


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce"])
@pytest.mark.parametrize("sides", [(4,), (2, 3)])
def test_no_bound_is_above_the_fluid_limit(sides, kind):
    topology = torus(*sides, alpha=simulation.ALPHA, bandwidth=simulation.BANDWIDTH)
    for horizon in (12, 14):
        nbytes = simulation.most_bytes(topology, kind, 2, horizon)
        least = bound(topology, kind, nbytes).time
        assert least <= horizon / 2 * simulation.ALPHA * (1 + 1e-6)


def test_the_bound_of_an_all_reduce_is_the_fluid_limit_on_the_torus():
    """Of little, middle and much data: latency and load count together."""
    topology = torus(2, 4, alpha=simulation.ALPHA, bandwidth=simulation.BANDWIDTH)
    for horizon in (13, 14):
        nbytes = simulation.most_bytes(topology, "all_reduce", 2, horizon)
        least = bound(topology, "all_reduce", nbytes).time
        assert least == pytest.approx(horizon / 2 * simulation.ALPHA, rel=1e-6)


def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    simulation.fluid(["--sides", "3", "--ticks", "1", "--latencies", "3"])
    assert "fluid us" in capsys.readouterr().out
    assert (tmp_path / "results/bench/fluid.json").is_file()
