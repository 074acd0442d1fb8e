"""The default against what the exhaustive search recorded, and the search itself on two ranks."""

from __future__ import annotations

import itertools
import json

import pytest

from experiments.benchmarks import default
from experiments.benchmarks.default import (
    SIZES,
    WITHIN,
    Best,
    Found,
    Limits,
    recorded,
)
from jaxcoll.bounds import bound
from jaxcoll.simulation import simulate
from jaxcoll.synth import Portfolio, Ring, Tacos, synthesize
from jaxcoll.topologies import ring, torus

SMALL = ("torus-2x4", "switch-2d-2x3", "mesh-2x3-unequal", "a100-x1")
KINDS = ("all_gather", "all_reduce", "all_to_all")


# Several seconds each; the other of the two is taken.
SLOW = {
    *((name, kind) for name in ("switch-2d-2x3", "mesh-2x3-unequal") for kind in KINDS[:2]),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[pytest.mark.slow] * ((name, kind) in SLOW))
        for name, kind in itertools.product(SMALL, KINDS)
    ],
)
def test_the_default_is_near_the_best_of_all(name, kind):
    topology, best = default.NETWORKS[name](), recorded()[name]["best"][kind]
    for size, nbytes in SIZES.items():
        taken = simulate(synthesize(topology, kind, nbytes=nbytes), nbytes).time
        assert taken <= WITHIN * best[size]["seconds"]


@pytest.mark.slow
def test_what_is_recorded_is_no_faster_than_the_bound():
    for name, network in recorded().items():
        topology = default.NETWORKS[name]()
        assert network["ranks"] == topology.num_ranks
        for kind, best in network["best"].items():
            for size, found in best.items():
                least = bound(topology, kind, SIZES[size]).time
                if found["synthesizer"] == "bound":  # of that day, and met within the tolerance
                    assert found["seconds"] <= least * (1 + 1e-9)
                else:
                    assert found["seconds"] >= least * (1 - 1e-9)


@pytest.mark.slow
def test_the_search_ends_at_bounds_and_finds_no_less_than_the_default(monkeypatch):
    """All-to-all on a pair meets its bound; the search beats a default that is slow."""
    met = default.search(ring(2), "all_to_all", Limits(64, 1.0)).best
    assert {best.synthesizer for best in met.values()} == {"bound"}
    found = default.search(torus(2, 3), "all_reduce", Limits(256, 1.0)).best

    def slow(topology, kind, nbytes):
        auto = Portfolio(nbytes, names=("ring",))
        return synthesize(topology, kind, auto)

    monkeypatch.setattr(default, "synthesize", slow)
    searched = default.search(torus(2, 3), "all_reduce", Limits(256, 1.0)).best
    for size, nbytes in SIZES.items():
        ring_takes = simulate(synthesize(torus(2, 3), "all_reduce", Ring(), nbytes=nbytes), nbytes)
        assert searched[size].seconds <= ring_takes.time
        assert found[size].seconds <= searched[size].seconds * WITHIN


def test_it_runs_and_records(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    record = tmp_path / "record.json"
    monkeypatch.setattr(default, "RECORD", record)
    monkeypatch.setattr(default, "commit", lambda: "0000000")
    monkeypatch.setitem(default.NETWORKS, "pair", lambda: ring(2))  # type: ignore[arg-type]
    monkeypatch.setattr(default, "_compile", lambda kinds: None)
    few = ["--networks", "pair", "--collectives", "all_gather"]
    default.main(["--exhaustive", "--sends", "64", "--seconds", "1", *few])
    found = json.loads(record.read_text())["networks"]["pair"]
    assert set(found["best"]["all_gather"]) == set(SIZES)
    (run,) = found["runs"]["all_gather"]
    assert (run["commit"], run["sizes"]) == ("0000000", list(SIZES))
    default.main(few)
    said = capsys.readouterr().out
    assert "Within 3 % of the exhaustive search's best: 4 of 4" in said
    assert (tmp_path / "results/bench/default.json").is_file()


def test_a_search_goes_on_where_it_was(monkeypatch, tmp_path):
    """Only sizes without a record are searched, and the runs of the others stay."""
    monkeypatch.setattr(default, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(default, "commit", lambda: "0000000")
    searched: list[tuple[str, ...]] = []

    def instead(topology, kind, limits, sizes):
        searched.append(tuple(sizes))
        return Found({size: Best(1.0, "ring", 1) for size in sizes}, {"Ring()": 2})

    monkeypatch.setattr(default, "search", instead)
    default.record("pair", ring(2), ("all_gather",), Limits(64, 1.0))
    default.record("pair", ring(2), ("all_gather",), Limits(64, 1.0), missing=True)
    assert searched == [tuple(SIZES)]
    record = json.loads(default.RECORD.read_text())
    del record["networks"]["pair"]["best"]["all_gather"]["1 MB"]
    default.RECORD.write_text(json.dumps(record))
    default.record("pair", ring(2), ("all_gather",), Limits(64, 1.0), missing=True)
    assert searched[1:] == [("1 MB",)]
    pair = recorded()["pair"]
    assert set(pair["best"]["all_gather"]) == set(SIZES)
    assert [run["sizes"] for run in pair["runs"]["all_gather"]] == [list(SIZES), ["1 MB"]]
    assert pair["runs"]["all_gather"][1]["stopped before chunks"] == {"Ring()": 2}


def test_a_variant_stops_before_the_chunks_that_its_limits_do_not_allow(monkeypatch):
    """No more sends than allowed, and no candidate that is estimated to take too long."""
    variants = [Ring(), Tacos(attempts=10**9)]
    monkeypatch.setattr(default, "_variants", lambda: variants)
    monkeypatch.setattr(default, "WITHIN", 0)  # the default meets the bound here
    found = default.search(torus(2, 3), "all_reduce", Limits(6 * 5 * 2, 1.0), {"1 MB": 10**6})
    assert found.best["1 MB"].synthesizer != "bound"
    assert found.stopped == {repr(variants[0]): 3, repr(variants[1]): 1}
