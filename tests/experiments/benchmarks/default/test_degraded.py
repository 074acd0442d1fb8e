"""The benchmark of degraded networks: the same cases for a seed, and rows that hold."""

from __future__ import annotations

import json

from experiments.benchmarks.default import users_networks
from jaxcoll import topologies


def test_cases_depend_on_their_number_and_the_seed_alone():
    drawn = users_networks.drawn_degraded
    assert drawn(3) == drawn(3)
    assert any(drawn(n) != drawn(n, seed=1) for n in range(5))


def test_random_networks_have_lost_something_each():
    made = [users_networks.drawn_degraded(number) for number in range(10)]
    assert all(topology.losses for topology in made)
    assert any(topology.losses.ranks for topology in made)
    assert any(topology.losses.slowed for topology in made)


def test_a_row_compares_with_the_bound_and_the_rivals():
    ring = users_networks.half(topologies.ring(8), (0, 1))
    row = users_networks.measure_degraded("named", "ring", ring)
    assert 1 - 1e-9 <= row["/ bound"] <= users_networks.NEAR
    assert row["took"] == "joint_trees"
    assert min(row["ring / bound"], row["forestcoll / bound"]) > 1.2


def test_the_benchmark_writes_its_rows(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(users_networks, "measure_degraded", lambda group, name, topology: {
        "group": group, "network": name, "/ bound": 1.5,
    })  # fmt: skip
    users_networks.degraded(["--random", "1", "--only", "degraded"])
    rows = json.loads((tmp_path / "results/bench/degraded.json").read_text())["rows"]
    assert len(rows) == 1
    assert "Above 1.05 of the bound, of 1: 0: " in capsys.readouterr().out
