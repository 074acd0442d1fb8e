"""The benchmark of thousands of ranks, on few."""

from __future__ import annotations

import argparse

from experiments.benchmarks.default import thousands
from jaxcoll import topologies


def test_a_row_says_what_was_taken_and_what_it_cost(monkeypatch):
    monkeypatch.setattr(thousands, "NETWORKS", {"small": lambda n: topologies.torus(2, n // 2)})
    row = thousands.measure("small", 8, "all_to_all", "1 MiB")
    assert row["took"]
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


def test_a_row_that_takes_too_long_says_so():
    options = argparse.Namespace(
        ranks=[256], networks=["rails"], collectives=["broadcast"], sizes=["1 MiB"], seconds=0.01
    )
    (row,) = thousands.rows(options)
    assert row["refused"] == "took more than 0.01 s"


def test_a_row_whose_process_dies_is_followed_by_the_next(monkeypatch):
    options = argparse.Namespace(
        ranks=[256], networks=["rails"], collectives=["broadcast", "reduce"], sizes=["1 MiB"],
        seconds=60,
    )  # fmt: skip
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    run = thousands.subprocess.run
    monkeypatch.setattr(
        thousands.subprocess,
        "run",
        lambda command, **more: run([command[0], "-c", killed], **more),
    )
    assert [row["refused"] for row in thousands.rows(options)] == 2 * ["killed by signal 9"]
