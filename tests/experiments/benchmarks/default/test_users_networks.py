"""Users' networks: the same cases for the same seed, of every family, and rows that hold."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks.default import WITHIN, Limits, users_networks
from experiments.benchmarks.default.users_networks import COLLECTIVES, FAMILIES, SIZES, drawn


def test_cases_depend_on_their_number_and_the_seed_alone():
    assert drawn(3) == drawn(3)
    assert any(drawn(n)[0] != drawn(n, seed=1)[0] for n in range(len(FAMILIES)))


def test_sixty_cases_have_every_collective_size_and_network():
    cases = [drawn(number) for number in range(60)]
    assert {kind for _, kind, _ in cases} == set(COLLECTIVES)
    assert {size for *_, size in cases} == set(SIZES)
    assert len({topology for topology, *_ in cases}) >= 30
    assert max(topology.num_ranks for topology, *_ in cases) <= 64


@pytest.mark.parametrize("number", [1, 4])  # few ranks
@pytest.mark.in_every_run("1")
def test_a_row_compares_the_default_with_the_best_and_the_bound(number):
    row = users_networks.measure(number, Limits(2**10, 0.2))
    assert row["/ bound"] >= 1 - 1e-9
    assert row["/ best"] <= row["/ bound"] * (1 + 1e-9)
    assert (row["best by"] == "bound") == (row["/ bound"] <= WITHIN)


@pytest.mark.slow
def test_the_benchmark_writes_its_rows(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(users_networks, "_compile", lambda limits: None)
    users_networks.main(["--cases", "2", "--sends", "256", "--seconds", "0.1"])
    rows = json.loads((tmp_path / "results/bench/users_networks.json").read_text())["rows"]
    assert [row["case"] for row in rows] == [0, 1]
    assert "of the best, of 2 cases: " in capsys.readouterr().out
