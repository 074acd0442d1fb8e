"""The default against what the exhaustive search recorded, and the search itself on two ranks."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks.default import default, exhaustive_search
from experiments.benchmarks.default.exhaustive_search import SIZES, WITHIN, recorded
from jaxcoll.bounds import bound
from jaxcoll.simulation import simulate
from jaxcoll.synth import Portfolio, Ring, synthesize
from jaxcoll.topologies import ring, torus

SMALL = ("torus-2x4", "switch-2d-2x3", "mesh-2x3-unequal", "a100-x1")
KINDS = ("all_gather", "all_reduce", "all_to_all")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SMALL)
def test_the_default_is_near_the_best_of_all(name, kind):
    topology, best = default.NETWORKS[name](), recorded()[name]["best"][kind]
    for size, nbytes in SIZES.items():
        taken = simulate(synthesize(topology, kind, nbytes=nbytes), nbytes).time
        assert taken <= WITHIN * best[size]["seconds"]


def test_what_is_recorded_is_no_faster_than_the_bound():
    for name, network in recorded().items():
        topology = default.NETWORKS[name]()
        assert network["ranks"] == topology.num_ranks
        for kind, best in network["best"].items():
            for size, nbytes in SIZES.items():
                least = bound(topology, kind, nbytes).time
                assert best[size]["seconds"] >= least * (1 - 1e-9)


def test_the_search_ends_at_bounds_and_finds_no_less_than_the_default(monkeypatch):
    """All-to-all on a pair meets its bound; the search beats a default that is slow."""
    met = exhaustive_search.search(ring(2), "all_to_all", 64, 1.0)
    assert {best.synthesizer for best in met.values()} == {"bound"}
    found = exhaustive_search.search(torus(2, 3), "all_reduce", 256, 1.0)

    def slow(topology, kind, nbytes):
        auto = Portfolio(nbytes, names=("ring",))
        return synthesize(topology, kind, auto)

    monkeypatch.setattr(exhaustive_search, "synthesize", slow)
    searched = exhaustive_search.search(torus(2, 3), "all_reduce", 256, 1.0)
    for size, nbytes in SIZES.items():
        ring_takes = simulate(synthesize(torus(2, 3), "all_reduce", Ring(), nbytes=nbytes), nbytes)
        assert searched[size].seconds <= ring_takes.time
        assert found[size].seconds <= searched[size].seconds * WITHIN


def test_it_runs_and_records(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    record = tmp_path / "record.json"
    monkeypatch.setattr(exhaustive_search, "RECORD", record)
    monkeypatch.setattr(exhaustive_search, "_commit", lambda: "0000000")
    monkeypatch.setitem(default.NETWORKS, "pair", lambda: ring(2))  # type: ignore[arg-type]
    monkeypatch.setattr(default, "_compile", lambda kinds: None)
    few = ["--networks", "pair", "--collectives", "all_gather"]
    default.main(["--exhaustive", "--sends", "64", "--seconds", "1", *few])
    found = json.loads(record.read_text())["networks"]["pair"]
    assert set(found["best"]["all_gather"]) == set(SIZES)
    assert found["runs"]["all_gather"]["commit"] == "0000000"
    default.main(few)
    said = capsys.readouterr().out
    assert "Within 3 % of the exhaustive search's best: 4 of 4" in said
    assert (tmp_path / "results/bench/default.json").is_file()
