"""The benchmark of thousands of ranks, on few."""

from __future__ import annotations

import argparse

from experiments.benchmarks.default import thousands
from jaxcoll import topologies


def test_a_row_says_what_was_taken_and_what_it_cost(monkeypatch):
    monkeypatch.setattr(thousands, "NETWORKS", {"small": lambda n: topologies.torus(2, n // 2)})
    row = thousands.measure("small", 8, "all_to_all", "1 MiB")
    assert row["took"]
    assert thousands.measure("small", 8, "all_to_all", "1 MiB", True)["took"] == "orbits"
    assert row["/ bound"] >= 1
    assert row["GiB"] > 0
    assert row["warned"] is False


def test_a_refusal_is_a_row(monkeypatch):
    monkeypatch.setattr(thousands, "NETWORKS", {"small": lambda n: topologies.torus(n)})
    monkeypatch.setattr(thousands, "synthesize", lambda *_, **__: topologies.torus(0))
    assert set(thousands.measure("small", 8, "all_gather", "1 MiB")) == {"refused"}


def test_every_network_has_the_ranks_that_it_is_asked_for():
    for make in thousands.NETWORKS.values():
        assert make(256).num_ranks == 256


def test_a_fault_is_in_the_middle_and_spares_other_hosts():
    slow, cut, less = (
        thousands.network_called(f"rails, {fault}", 256)
        for fault in ("slow-wire", "lost-wire", "lost-host")
    )
    assert str(slow.losses) == "host 16 rank 0-rail 0 at 0.2"
    assert str(cut.losses) == "less host 16 rank 0-rail 0"
    assert (less.num_ranks, less.losses.ranks) == (248, tuple(range(128, 136)))
    for name in thousands.NETWORKS:
        for fault in thousands.FAULTS:
            left = thousands.network_called(thousands.case_name(name, fault), 256)
            assert bool(left.losses) == (fault != "none")


def test_a_row_that_takes_too_long_says_so():
    options = argparse.Namespace(
        ranks=[256],
        networks=["rails"],
        collectives=["broadcast"],
        sizes=["1 MiB"],
        seconds=0.01,
        orbits=False,
        faults=["none"],
    )
    (row,) = thousands.rows(options)
    assert row["refused"] == "took more than 0.01 s"


def test_a_row_whose_process_dies_is_followed_by_the_next(monkeypatch):
    options = argparse.Namespace(
        ranks=[256], networks=["rails"], collectives=["broadcast", "reduce"], sizes=["1 MiB"],
        seconds=60, orbits=True, faults=["none"],
    )  # fmt: skip
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    run = thousands.subprocess.run
    monkeypatch.setattr(
        thousands.subprocess,
        "run",
        lambda command, **more: run([command[0], "-c", killed], **more),
    )
    assert [row["refused"] for row in thousands.rows(options)] == 2 * ["killed by signal 9"]


def test_the_record_has_every_case_once_in_order(monkeypatch, tmp_path):
    monkeypatch.setattr(thousands.page_tables, "THOUSANDS", tmp_path / "thousands.json")
    monkeypatch.setattr(thousands.page_tables, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- rows: thousands -->\n<!-- end of rows -->\n")

    def row(network, **more):
        return {"network": network, "ranks": 256, "collective": "reduce", "size": "1 MiB", **more}

    timed = {"took": "direct", "/ bound": 1.5, "CPU s": 2.0, "GiB": 0.25}
    list(thousands.recorded(iter([row("rails", refused="no"), row("dgx-h100", **timed)])))
    list(thousands.recorded(iter([row("rails", **timed)])))
    lines = [line for line in page.read_text().splitlines() if "256" in line]
    assert lines == [
        f"| {network} | 256 | reduce | 1.500 | direct | 2 | 0.25 |"
        for network in ("dgx-h100", "rails")
    ]


def test_rows_by_orbits_are_in_a_table_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(thousands.page_tables, "THOUSANDS", tmp_path / "thousands.json")
    monkeypatch.setattr(thousands.page_tables, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    blocks = ("thousands", "thousands-by-orbits")
    page.write_text("".join(f"<!-- rows: {b} -->\n<!-- end of rows -->\n" for b in blocks))
    case = {"network": "rails", "ranks": 256, "collective": "reduce", "size": "1 MiB"}
    timed = {"/ bound": 1.5, "CPU s": 2.0, "GiB": 0.25}
    by = {"took": "orbits", "by_orbits": True}
    list(thousands.recorded(iter([{**case, **timed, **by}, {**case, **timed, "took": "direct"}])))
    default, orbits = page.read_text().split("thousands-by-orbits")
    assert ("direct" in default, "direct" in orbits) == (True, False)
    assert ("orbits" in default.partition("rows: ")[2], "orbits" in orbits) == (False, True)
