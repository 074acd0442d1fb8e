"""The quickstart, with little of everything; and that it fails when what it shows does not hold."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from rich.console import Console

import jaxcoll as jc
from experiments import __main__ as command
from experiments.config import QuickstartConfig, configure
from experiments.quickstart import quickstart
from experiments.quickstart.candidates import (
    AXIS,
    Candidate,
    NumericsCheck,
    best_at,
    best_for,
    build_topology,
    candidates,
    compare_with_psum,
    rank_mesh,
)
from experiments.quickstart.quickstart import HELD_OUT, Curves, Digits, gradient_buckets, train
from experiments.study import CheckError

COMPARED = ("ring", "direct", "bucket", "tacos")
TINY = [
    "experiment=quickstart",
    f"synth.names=[{','.join(COMPARED)}]",
    "topology.sides=[2,2]",
    "sizes=[1024,1048576]",
    "elements=5",
    "synth.chunks_of.tacos=[2]",
    "train.steps=3",
    "train.hidden=[8]",
    "train.accuracy_wanted=0",
]


def tiny(*more: str) -> QuickstartConfig:
    return configure([*TINY, *more])[1]


def run(config: QuickstartConfig) -> tuple[list[dict[str, Any]], str]:
    console = Console(file=io.StringIO(), width=120)
    rows = quickstart.run(config, console)
    return rows, console.file.getvalue()  # type: ignore[attr-defined]


def test_it_prints_and_writes_its_results(tmp_path):
    config = tiny(f"results={tmp_path}")
    rows, printed = run(config)
    assert [row["synthesizer"] for row in rows] == list(COMPARED)
    for row in rows:
        assert row["ints_equal"]
        assert 0 <= row["float_error"] <= 1
        assert all(0 < percent <= 100 + 1e-9 for percent in row["percent_of_bound"])
    assert sorted(size for row in rows for size in row["best_at"]) == list(config.sizes)
    for text in ("bitwise equal", "1 KiB", "1 MiB", "held-out accuracy", *COMPARED):
        assert text in printed

    content = json.loads((tmp_path / "table.json").read_text())
    assert content["rows"] == rows
    assert [len(curve) for curve in content["training"]["loss"].values()] == [3, 3]
    pictures = {"topology.png", "heatmap.png", "algbw.png"}
    assert {path.name for path in tmp_path.iterdir()} == pictures | {"table.json"}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


@pytest.mark.slow
def test_what_is_not_defined_for_the_network_is_said(tmp_path):
    config = tiny(
        f"results={tmp_path}", "topology.family=fully_connected", "topology.sides=[3]",
        "train.batch=3", "sizes=[64]", "synth.names=[bucket,ring]",
    )  # fmt: skip
    rows, printed = run(config)
    row = next(row for row in rows if row["synthesizer"] == "bucket")
    assert not row["defined"]
    assert "no grid" in str(row["reason"])
    assert "bucket x4 is not defined here" in printed


@pytest.mark.slow
def test_the_command_ends_well_and_leaves_nothing_else_behind(tmp_path):
    root = Path(__file__).parents[3]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    subprocess.run(
        [sys.executable, "-m", "experiments", *TINY, "results=here"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(root)},
        check=True,
        capture_output=True,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_failed_check_is_one_line_and_a_status(monkeypatch, capsys):
    def fail(config):
        raise CheckError(f"{config.train.steps} steps were not enough")

    monkeypatch.setattr(quickstart, "run", fail)
    assert command.main(TINY) == 1
    assert capsys.readouterr().err == "error: 3 steps were not enough\n"


# ---------------------------------------------------------------------- what is compared


def test_the_best_is_the_quickest_at_each_size():
    config = tiny()
    topology = build_topology(config.topology, config.hardware)
    found = list(candidates(topology, config.synth, config.sizes, "tacos", seed=0))
    for i, size in enumerate(config.sizes):
        times = [
            jc.simulate(c.schedules[i], size, model="tacos").time for c in found if c.is_defined
        ]
        assert best_at(found, i).times[i] == min(times)
        assert best_for(found, size, "tacos").label == best_at(found, i).label
    undefined = Candidate("none", 1, (), "not for this network")
    assert best_at([undefined, *found], 0) == best_at(found, 0)


def test_auto_is_shown_as_synthesize_returns_it():
    """With chunks for every size; training takes a candidate with fixed ones."""
    config = tiny("synth.names=[ring,auto]")
    topology = build_topology(config.topology, config.hardware)
    ring, auto = candidates(topology, config.synth, config.sizes, "astra", seed=0)
    for size, schedule, seconds in zip(config.sizes, auto.schedules, auto.times, strict=True):
        assert schedule == jc.synthesize(topology, "all_reduce", nbytes=size)
        assert seconds == jc.simulate(schedule, size).time
    assert auto.label == "auto"
    assert best_for([ring, auto], config.sizes[-1], "astra").label == ring.label


def test_links_are_those_of_the_hardware():
    config = tiny("hardware.alpha_us=2", "hardware.bandwidth_gbps=3")
    topology = build_topology(config.topology, config.hardware)
    assert topology == jc.topologies.torus(2, 2, alpha=2e-6, bandwidth=3e9)


def test_a_schedule_that_sums_wrong_is_found_out(monkeypatch):
    schedule = jc.synthesize(jc.topologies.ring(2), "all_reduce", "ring")
    right = compare_with_psum(schedule, rank_mesh(2), elements=7, seed=0)
    right.check("ring")
    monkeypatch.setattr(jc, "psum", lambda x, axis, schedule: jax.lax.psum(x, axis) + x)
    wrong = compare_with_psum(schedule, rank_mesh(2), elements=7, seed=0)
    assert not wrong.ints_equal
    assert wrong.float_error > 1


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (NumericsCheck(False, 0.0), "ring: integers differ"),
        (NumericsCheck(True, 1.5), "ring: floats differ from lax.psum by 1.5 times"),
        (NumericsCheck(True, float("nan")), "ring: floats differ"),
    ],
)
def test_sums_that_differ_are_refused(check, expected):
    with pytest.raises(CheckError, match=expected):
        check.check("ring")


def test_too_few_devices_are_refused():
    with pytest.raises(CheckError, match="1000 ranks need as many devices, JAX has"):
        rank_mesh(1000)


# ---------------------------------------------------------------------- training


def test_digits_are_split_without_overlap():
    digits = Digits.load(seed=3)
    assert digits.held_out_pixels.shape == (HELD_OUT, 64)
    assert digits.train_pixels.shape == (1797 - HELD_OUT, 64)
    assert digits.train_pixels.min() == 0.0
    assert digits.train_pixels.max() == 1.0
    assert set(digits.held_out_labels) == set(digits.train_labels) == set(range(10))
    np.testing.assert_array_equal(digits.train_labels, Digits.load(seed=3).train_labels)
    assert (digits.train_labels != Digits.load(seed=4).train_labels).any()


def test_batches_are_epochs_in_ever_new_orders():
    digits = Digits.load(seed=0)
    count = len(digits.train_labels)
    batches = digits.batches(100, 30, seed=1)
    assert batches.shape == (30, 100)
    order = batches.ravel()
    assert sorted(order[:count]) == list(range(count))
    assert sorted(order[count : 2 * count]) == list(range(count))
    assert (order[:count] != order[count : 2 * count]).any()
    np.testing.assert_array_equal(batches, digits.batches(100, 30, seed=1))


@pytest.mark.slow
def test_many_ranks_learn_what_one_learns():
    config = tiny().train
    digits = Digits.load(seed=0)
    steps = []
    reduce = optax.stateless(lambda gradients, _: jax.lax.pmean(gradients, AXIS))
    # 360 held-out digits are not shared out evenly among 16 ranks.
    runs = [
        train(config, digits, rank_mesh(n), reduce, 0, lambda: steps.append(0)) for n in (1, 16)
    ]
    np.testing.assert_allclose(runs[0].loss, runs[1].loss, rtol=1e-5)
    np.testing.assert_array_equal(runs[0].accuracy, runs[1].accuracy)
    assert len(steps) == 2 * config.steps


def test_gradients_fill_the_buckets_that_are_counted():
    config = dataclasses.replace(tiny().train, hidden=(8,), bucket_bytes=1000)
    # The last layer, then the first kernel, too large to share one, then the first biases.
    assert gradient_buckets(config) == (3, 4 * 64 * 8)
    assert gradient_buckets(dataclasses.replace(config, bucket_bytes=4000)) == (
        1,
        4 * (64 * 8 + 8 + 8 * 10 + 10),
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (([1.0, 0.5], [0.9, 0.97]), ([1.0, 0.6], [0.9, 0.97]), "training losses differ by 0.1"),
        (([1.0, np.nan], [0.9, 0.97]), ([1.0, 0.5], [0.9, 0.97]), "training losses differ"),
        (([1.0, 0.5], [0.8, 0.97]), ([1.0, 0.5], [0.9, 0.97]), "accuracies differ by 0.1"),
        (([1.0, 0.5], [0.9, 0.95]), ([1.0, 0.5], [0.9, 0.95]), "accuracy is 0.9500, not above"),
    ],
)
def test_runs_that_differ_or_learn_too_little_are_refused(ours, theirs, expected):
    wanted = configure(["experiment=quickstart"])[1].train
    first, second = (Curves(np.array(loss), np.array(right)) for loss, right in (ours, theirs))
    with pytest.raises(CheckError, match=expected):
        quickstart._check(wanted, first, second, Console(file=io.StringIO()))
