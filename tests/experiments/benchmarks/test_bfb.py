"""The BFB benchmark: its rows, and that it enumerates the circulants that it speaks of."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from experiments.benchmarks import networks
from jaxcoll.topologies import hypercube, torus


def test_a_row_holds_ours_and_the_papers():
    found = networks.table_3_6(torus(3, 3), 0.01)
    assert (found["T_L"], found["T_B"], found["optimal"]) == (2, "8/9", True)
    assert found["sends"] == 9 * 8 * found["chunks"]
    assert found["paper's seconds"] == 0.01
    assert [topology.num_ranks for topology, _ in networks.TABLE_3_6] == [
        4, 8, 16, 32, 64, 1024, 4, 9, 16, 25, 36, 2500,
    ]  # fmt: skip


def test_twisted_tori_up_to_a_size_are_all_optimal():
    assert set(networks.twisted_tori(40)) == {(2, 4), (3, 6), (4, 8), (2, 2, 4), (2, 4, 4)}
    assert networks.twisted(300)["optimal"]


@pytest.mark.parametrize(("n", "count"), [(15, 2), (16, 3), (21, 3), (24, 2), (13, 1)])
def test_one_circulant_per_class_is_tried(n, count):
    def image(offsets, unit):
        return tuple(sorted(min(unit * a % n, -unit * a % n) for a in offsets))

    units = [u for u in range(n) if math.gcd(u, n) == 1]
    everything = {
        min(image(offsets, unit) for unit in units)
        for offsets in itertools.combinations(range(1, (n + 1) // 2), count)
        if math.gcd(n, *offsets) == 1
    }
    tried = [
        min(image(offsets, unit) for unit in units) for offsets in networks.circulants(n, count)
    ]
    assert set(tried) == everything
    assert len(tried) <= 3 * len(everything)  # offsets of equal divisors may be tried in turn


def test_the_known_counterexample_is_listed():
    summary, *refuting = networks.conjecture(3, 15)
    assert not summary["optimal"]
    assert ("C(15,{1,4,5})", "1") in {(row["network"], row["T_B"]) for row in refuting}
    assert networks.conjecture(2, 30)[0]["optimal"]


def test_kautz_digraphs_cost_what_is_printed():
    degree, n, found, _ = networks.kautz((4, 64))
    assert (degree, n, found.steps, found.inverse_bandwidth) == (4, 64, 3, Fraction(21, 16))


def test_it_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(networks, "TABLE_3_6", [(hypercube(3), 0.01)])
    monkeypatch.setattr(networks, "LARGE", [(4, 4, 4)])
    networks.bfb(["--twisted", "50"])
    assert "63/64" in capsys.readouterr().out
    assert (tmp_path / "results/bench/bfb.json").is_file()
