"""The ways of a plan out of the library: a row for each model and mesh, and the page's table."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from experiments import timing
from experiments.benchmarks import plan_routes
from experiments.models.scripts import SCRIPTS, Script
from tensorstate import trace


@pytest.mark.slow
def test_every_way_runs_the_plan(tmp_path, monkeypatch):
    """The second run measures nothing: its rows are those of the file."""
    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    script = SCRIPTS["LSTM, scan"]()
    graph = trace(script.step, jax.eval_shape(script.init))
    row = plan_routes.measure(script, graph, {"data": 2, "model": 4})
    assert row["error"] == ""
    for way in plan_routes.WAYS:
        assert row[f"differs {way}"] < 1e-4
        assert row[f"bytes {way}"] == 1
        assert row[f"time {way}"] == pytest.approx(1)
    assert max(row["memory b"], row["memory c"]) <= 1.25


def test_what_does_not_run_is_a_row_with_its_error():
    def step(w, x):
        return w * x, (w * x).sum()

    def init():
        raise RuntimeError("no arguments")

    shape = jax.ShapeDtypeStruct((8,), np.float32)
    row = plan_routes.measure(Script(step, init, 1), trace(step, (shape, shape)), {"data": 2})
    assert row["error"] == "search: RuntimeError: no arguments"
    assert row["search s"] is not None
    json.dumps(row)


def test_differences_are_relative_to_the_part():
    found = [[np.array([1.0, 2.0])], [np.array([100.0]), np.array([1e-9])]]
    expected = [[np.array([1.0, 2.5])], [np.array([100.0]), np.array([0.0])]]
    assert plan_routes.difference(found, expected) == pytest.approx(0.2)
    assert plan_routes.difference(expected, expected) == 0


def test_the_page_has_a_line_for_each_model():
    figures = {f"{f} {w}": 1.0 for f in ("differs", "bytes", "time", "memory") for w in "abc"}
    row = {"model": "mlp", "operators": 9, "search s": 0.5, "error": "", **figures}
    text = plan_routes.page_table([{**row, "mesh": "8"}, {**row, "mesh": "2x4", "bytes b": 1.25}])
    (line,) = [line for line in text.splitlines() if line.startswith("| mlp")]
    assert "8, 2x4" in line
    assert "1.25" in line
    failed = {**row, "mesh": "2x2x2", "search s": None, "error": "search", "bytes b": None}
    (line,) = [x for x in plan_routes.page_table([failed]).splitlines() if x.startswith("| mlp")]
    assert line.count("fails") == 2


def test_rows_measured_one_by_one_are_one_table(tmp_path, monkeypatch):
    """A run measures what is missing or failed, or is asked for again, and keeps the others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_routes, "PAGE", tmp_path / "page.md")
    plan_routes.PAGE.write_text("before\n<!-- routes -->\nold\n<!-- end of routes -->after\n")
    figures = {f"{f} {w}": 1.0 for f in ("differs", "bytes", "time", "memory") for w in "abc"}
    measured: list[int] = []

    def measure(script, graph, sizes):
        measured.append(len(sizes))
        failed = {"error": "no plan"} if len(measured) == 1 else {"error": ""}
        return {"operators": len(measured), "search s": 0.5, **figures, **failed}

    monkeypatch.setattr(plan_routes, "measure", measure)
    # Its process sets the number of devices; that of this one is fixed once JAX has run.
    monkeypatch.setattr(plan_routes.jax.config, "update", lambda _name, _value: None)
    one = ["--models", "LSTM, scan", "--meshes"]
    for arguments in ([*one, "2x4"], [*one, "8"], [*one, "8", "2x4"], [*one, "8", "--again"]):
        plan_routes.main(arguments)
    assert measured == [2, 1, 2, 1]
    plan_routes.main(["--page"])
    text = plan_routes.PAGE.read_text()
    assert "| LSTM, scan | 8, 2x4 | 4 |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
